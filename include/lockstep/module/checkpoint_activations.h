// checkpoint_activations: activation checkpointing (Chen et al., arXiv:1604.06174). What blocks of
// a model compute in forward() is not kept for backward(), but computed again there, from what went
// into the block.
//
//   lockstep::checkpoint_activations(model, {"transformer.h.*"});
//   loss(model->forward(batch)).backward();               // as ever
//
// How: the module stays as it is. A block begins where an operation uses one of its parameters, and
// ends where one uses a parameter of another block, or of none. Results of operations in between
// lie in memory that is given back when the block has been left, and comes again when an operation
// of backward() uses one of them: the operations that are needed for it run again, with the random
// numbers that they had drawn, on the same threads. Gradients are those without it, bit for bit.
//
// What stays of a block between forward and backward is what comes into it, and what is used
// outside of it. The first forward() learns what that is, where operations before the block's first
// parameter use it (normalisations do), and computes such results twice once.
//
// Works on plain modules, inside fully_shard() (units are gathered again), on the parts of
// parallelize() (collectives run again, and are counted), and in the stages of a Pipeline. Called
// before or after these, on the same module; what a stage's module names is a part of the model's.
//
// Limits. A block that uses no parameter has no begin. Operations that write something from outside
// of the block (a buffer; running statistics of batch normalisation excepted) keep what was
// computed before them. With retain_graph what was computed again stays until the graph goes.
// Memory that a kernel of one's own reads past LibTorch's operations must be there: use it in an
// operation before. An argument that has been written between forward and backward is an
// InvalidArgument that names the operation.
#pragma once

#include <lockstep/module/module_ref.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

namespace dispatch {
class Recomputation;
}

struct ActivationOptions {
  // Of the modules that the patterns name, in the module's order: the first one and every nth after
  // it.
  int every = 1;
  // Selective checkpointing: operations whose results stay all the same, because they cost much to
  // compute ("aten::mm", "aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu").
  std::vector<std::string> keep = {};
};

// What has been saved and paid, on all threads, since the call or the last reset().
class ActivationCheckpoints {
 public:
  explicit ActivationCheckpoints(std::shared_ptr<dispatch::Recomputation> state)
      : state_(std::move(state)) {}

  struct Counts {
    std::int64_t blocks = 0;          // that forward() has left
    std::int64_t released_bytes = 0;  // of their results, together
    std::int64_t recomputations = 0;  // of a block's results or some of them
    std::int64_t operations = 0;      // that ran again for that
  };
  [[nodiscard]] Counts counts() const;
  void reset();

 private:
  std::shared_ptr<dispatch::Recomputation> state_;
};

// Local. `patterns` name modules (lockstep/layout/name_pattern.h), {"blocks.*"} for instance; if
// such modules lie inside each other, the outermost one is the block. Lasts as long as the module's
// parameters; the result only counts. No pattern changes nothing. InvalidArgument, before anything
// is changed: a pattern that names no module with parameters (and what was probably meant), `every`
// below 1, an operation in `keep` that LibTorch does not know, a module that has been given to this
// function before.
ActivationCheckpoints checkpoint_activations(const ModuleRef& module,
                                             const std::vector<std::string>& patterns,
                                             const ActivationOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
