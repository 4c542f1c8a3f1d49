// checkpoint_activations: activation checkpointing (Chen et al., arXiv:1604.06174). The activations
// of a model's blocks are not kept between forward() and backward(), but recomputed in backward()
// from the block's inputs. With ActivationOptions::offload they are kept in host memory instead.
//
//   lockstep::checkpoint_activations(model, {"transformer.h.*"});
//   loss(model->forward(batch)).backward();               // as before
//
// How: the module is not changed. A block begins at an operation that uses one of its parameters,
// and ends at an operation that uses a parameter outside of the block. Results of operations in
// between live in memory that is released after the block. When an operation of backward() uses
// such a result, the operations that produced it run again, with the same random numbers, on the
// same threads. Gradients are bit-identical to those without checkpointing.
//
// Between forward and backward, only a block's inputs and the results that are used outside of it
// stay in memory. If operations before the first parameter of the next block use a block's results
// (normalisations do), the first forward() detects this and computes these results a second time.
// Later forwards do not.
//
// Works on plain modules, inside fully_shard() (units are gathered again), on sharded modules of
// parallelize() (collectives run again, and are counted), and in the stages of a Pipeline. Call it
// before or after those functions, on the same module. Patterns for a stage's module see only the
// names that the stage has.
//
// Limits. A block without parameters is not detected. If an operation writes something outside of
// the block (a buffer; except running statistics of batch normalisation), the results that were
// computed before the operation are kept, unless they are offloaded. LibTorch rounds a piece of
// pinned memory up to a power of two, and reuses it without ever returning it to the system. With
// retain_graph, recomputed results stay until the graph is released. A custom kernel that reads
// memory past LibTorch's dispatcher needs the memory present: use the tensor in an operation
// before. If an argument was written between forward and backward, throws InvalidArgument, which
// names the operation.
#pragma once

#include <lockstep/module/module_ref.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

namespace dispatch {
class ActivationCheckpointState;
}

struct ActivationOptions {
  // Checkpoints the first and every nth module after it, among the modules that the patterns match,
  // in the module's order.
  int every = 1;
  // Selective checkpointing: operations whose results are kept anyway because they are expensive to
  // compute ("aten::mm", "aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu").
  std::vector<std::string> keep = {};
  // Copies results on a device to pinned host memory instead of recomputing them. The copies run on
  // a stream beside the computation; those of a block come back during the backward pass of the
  // block after it. Results below 1 KiB and results in host memory stay where they are.
  bool offload = false;
};

// Savings and costs, on all threads, since checkpoint_activations() or the last reset().
class ActivationCheckpoints {
 public:
  explicit ActivationCheckpoints(std::shared_ptr<dispatch::ActivationCheckpointState> state)
      : state_(std::move(state)) {}

  struct Counts {
    std::int64_t blocks = 0;          // that forward() has finished
    std::int64_t released_bytes = 0;  // of the blocks' results, in total; recomputed or offloaded
    std::int64_t recomputations = 0;  // of a block's results or part of them
    std::int64_t operations = 0;      // that ran again in recomputations
  };
  [[nodiscard]] Counts counts() const;
  void reset();

 private:
  std::shared_ptr<dispatch::ActivationCheckpointState> state_;
};

// Not collective. `patterns` match modules (lockstep/layout/name_pattern.h), for example
// {"blocks.*"}; if matched modules are nested, the outermost one is the block. Takes effect for the
// lifetime of the module's parameters; the returned object only counts. Without patterns, changes
// nothing. Throws InvalidArgument, before anything is changed, if a pattern matches no module with
// parameters (the message suggests a likely name), `every` is below 1, LibTorch does not know an
// operation in `keep`, or the module was passed to this function before.
ActivationCheckpoints checkpoint_activations(const ModuleRef& module,
                                             const std::vector<std::string>& patterns,
                                             const ActivationOptions& options = {});

}  // namespace lockstep

#pragma GCC visibility pop
