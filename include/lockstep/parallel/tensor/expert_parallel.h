// expert_parallel: the experts of a model's mixtures (lockstep/models/mixture.h) are owned by the
// ranks of an axis `ep`, each of which has its own part of the batch: tokens travel to their
// experts and back.
//
//   auto model = lockstep::models::Moe(options);
//   auto moe = lockstep::expert_parallel(*model, mesh.sub_mesh({"dp", "ep"}),
//                  {.strategy = [](torch::nn::Module& part, const lockstep::Mesh& ranks) {
//                     return lockstep::DistributedDataParallel(part, ranks);
//                   }});
//   torch::optim::AdamW adamw(moe.parameters(), 1e-3);       // the handle's, not the module's
//   ...
//   moe.zero_grad();
//   model->loss(own_ids, own_targets).backward();            // the module as it is
//   adamw.step();
//
// What is the same as on one process that has the batches of all ranks, one after the other in
// the order of the mesh: which tokens go where, which are dropped, the losses that keep the load
// even, and gradients, as averages over the ranks' losses. For that ranks tell each other, once a
// mixture, how many tokens chose which expert: an all_gather of k x experts numbers.
//
// A mixture costs two all_to_alls in forward, of the rows that leave the rank, and two in backward.
// Parameters of experts are parts (lockstep/dispatch/part.h) of the wholes that checkpoints and
// state_dict() have, so a checkpoint loads on any number of ranks. Their gradients are summed over
// the ranks' tokens where the experts are, and averaged by the strategy over the ranks that have
// the same experts: those of the mesh's other axes.
//
// With an axis `tp` besides, what is no expert is cut along it (tensor_parallel.h), and the ranks
// that differ on it alone pass the same batch. Each of them computes its experts for all of its
// tokens: experts are cut along `ep` alone.
//
// With an axis `cp` the ranks that differ on it pass the same batch too, and cut its sequences:
// model->loss(moe.cut(ids), moe.cut(targets)). What is no expert is as context_parallel() says
// (context_parallel.h); tokens go to their experts from the rank that has them, and the order of
// the batch, by which tokens are dropped, is that of the whole sequences.
//
// In a Pipeline it is the strategy of a stage. The batch is then a micro-batch, of all ranks that
// compute it: so it is the same as on one process that has the micro-batches of all ranks one after
// the other, and computes as many of them.
//
// Ranks should have batches of one size; with others the average is of the ranks' means. With `cp`
// and a capacity they must have as many rows: a Mismatch where they have not.
//
// Errors: as of parallelize_tensors(). An exception on some ranks only, in an expert for instance,
// leaves the others waiting for this step's collectives: let it end the rank, or call abort() of
// the groups. A Pipeline does so.
//
// Every rank of the mesh calls the same operations in the same order. Threads: one thread a time
// per handle.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/module/torchscript.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/plan.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

struct ExpertParallelOptions {
  // Trains a part of the model on the ranks that have the same one and other tokens. It is called
  // for what is no expert, with all ranks; and, where there are several, with the ranks that own
  // the same experts. Never null.
  std::function<Handle(torch::nn::Module& part, const Mesh& ranks)> strategy = {};
  // With `tp`: how what is no expert is cut along it. The strategy is then given this rank's parts,
  // and ranks without `tp`.
  TensorPlan plan = {};
  // With `tp`: as TensorParallelOptions says. A mixture gathers its input.
  bool sequence_parallel = false;
  // With `cp`: as ContextParallelOptions says, and with `sequence_parallel` of both.
  ContextMethod method = ContextMethod::ring;
  ContextBalance balance = ContextBalance::zigzag;
  int sequence_dim = 1;
  // The module is a stage of a model: it may have no mixture of its own.
  bool is_stage = false;
  // With `cp` in a Pipeline: the mesh that its CutSequences has, of `tp` and `cp`, or with
  // sequence_parallel of `cp` and `tp`.
  std::optional<Mesh> tensors = std::nullopt;
};

class ExpertParallelState;

class [[nodiscard]] ExpertParallel : public Handle {
 public:
  using Options = ExpertParallelOptions;

  ExpertParallel() = default;
  explicit ExpertParallel(std::shared_ptr<ExpertParallelState> state);

  // Local: as ContextParallel::cut(). On a mesh without `cp` the batch as it is.
  [[nodiscard]] at::Tensor cut(const at::Tensor& batch) const;

  // Local. Which experts this rank has, and bytes, in a few lines.
  [[nodiscard]] const std::string& plan() const;
  // Local. Of this rank, in forward(): all_to_alls of tokens, and the bytes that went to other
  // ranks. Backward has as many.
  [[nodiscard]] GroupTraffic tokens_sent() const;
};

// Collective, and blocks. `mesh`: the axis `ep`, and those along which the batch is divided
// besides; `tp`, with a plan; and `cp`. An axis of one rank is as an absent one, and a plan for it
// is ignored; without `ep` each rank has all experts. The values are the mesh's first rank's.
// InvalidArgument, before anything is changed: no strategy, `tp` without a plan, tensors of other
// axes, a model without mixtures
// that is no stage, experts that the ranks do not divide, a mixture whose experts are elsewhere
// already. Mismatch when ranks have different models. The module must outlive the handle; when the
// handle goes, experts stay where they are.
[[nodiscard]] ExpertParallel expert_parallel(torch::nn::Module& module, const Mesh& mesh,
                                             ExpertParallelOptions options);
// Shares ownership.
[[nodiscard]] ExpertParallel expert_parallel(std::shared_ptr<torch::nn::Module> module,
                                             const Mesh& mesh, ExpertParallelOptions options);
// Does not compile: says what to do instead.
template <TorchScript Model>
ExpertParallel expert_parallel(const Model& /*module*/, const Mesh& /*mesh*/,
                               const ExpertParallelOptions& /*options*/) {
  refuse_torchscript<Model>();
}

}  // namespace lockstep

#pragma GCC visibility pop
