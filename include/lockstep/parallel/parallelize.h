// parallelize(): applies to one model on one mesh all strategies for which the mesh has an axis.
//
//   const lockstep::Mesh mesh(world, {{"pp", 2}, {"dp", -1}, {"fsdp", 2}, {"tp", 2}});
//   auto model = lockstep::deferred([&] { return lockstep::models::Gpt(shape); });
//   lockstep::ParallelModel gpt = lockstep::parallelize(model, mesh, {.micro_batches = 4});
//   lockstep::optim::AdamW adamw(gpt.parameters(), 3e-3);        // the handle's, not the module's
//   ...
//   gpt.zero_grad();
//   at::Tensor loss = gpt.step({tokens}, {targets});       // forward, loss, backward
//   gpt.clip_grad_norm(1.0);
//   adamw.step();
//
// The same program runs on every mesh; with equal shares of a batch, losses differ only by
// rounding. Axes, in any order:
//
//   pp     stages of a pipeline                       pipeline/pipeline.h
//   dp     replicas, each with its own rows           data/distributed_data_parallel.h
//   ep     owners of experts, with their own rows
//   cp     parts of every sequence
//   fsdp   shards, each with its own rows             sharded/fully_shard.h
//   tp     parts of every layer                       tensor/plan.h
//
// An absent axis has size one, and its options are ignored. An axis of size one has no effect,
// except fsdp: the rank stores its parameters as ShardOptions specify (compute_dtype, offload). The
// headers above document the effect of each strategy on the module, and its errors.
//
// tp and cp: parameters become global tensors (lockstep/global/tensor.h), and operations of the
// model's forward() run on each rank's shards by their rules. Outputs are global tensors, too.
// Build the optimizer on the handle's parameters(): the module's parameters are no longer leaves of
// autograd, and using their .grad throws an error. A batch, random numbers and other plain tensors
// must be the same on these ranks: different batches or generator states cause a Mismatch in the
// first steps, or in a later step that is compared (GlobalOptions::replicate_plain).
//
//   tp   a pair of a Colwise() and a Rowwise() layer costs one all_reduce in forward and one in
//        backward; with sequence_parallel (Korthikanti et al., arXiv:2205.05198) a reduce_scatter
//        and an all_gather each, and activations between pairs are sharded along the sequence
//   cp   attention combines tokens. ring: keys and values go from rank to rank (Liu, Zaharia and
//        Abbeel, arXiv:2310.01889), n - 1 messages in forward and 2n - 1 in backward; ulysses:
//        heads are sharded instead (Jacobs et al., arXiv:2309.14509), 4 all_to_alls in each, and n
//        must divide the heads. Any number of tokens: the last ranks may have fewer
//   ep   the experts of a models::Mixture are sharded, and tokens are sent to them and back: two
//        all_to_alls in forward and two in backward. On every mesh, tokens are counted, dropped and
//        balanced over all rows of a micro-batch, as on one process
//
// Rows: a batch is divided over the ranks of data(). Each of them passes its rows to step(); ranks
// of pp, cp and tp pass the same rows. If data().size() does not divide a batch, shares differ in
// size, and no row is lost. All ranks have the same weight: losses and gradients are means of the
// ranks' means, so a row of a smaller share has a larger weight.
//
//   lockstep::Group data = gpt.data();
//   at::Tensor own = batch.tensor_split(data.size())[data.rank()];
//
// Without an axis pp, the module's own forward() and backward() work as with every other handle;
// step() is then a loop over the micro-batches.
//
// step(), evaluate() and forward() are collective over all ranks of the mesh. Threads: one thread
// at a time per ParallelModel.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/model_plans.h>
#include <lockstep/parallel/parallel_plan.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/plan.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// How a sequence is divided. With a causal mask, the last tokens attend to the most keys: in zigzag
// order, each rank has one part from the front and one from the back.
enum class ContextBalance : std::uint8_t { contiguous, zigzag };

struct PipelinePlan {
  std::string schedule = "1f1b";  // plan::schedule_names()
  int stages_per_rank = 0;        // 0: plan::stages_per_rank(schedule)
};

// Must be the same on all ranks.
struct ParallelOptions {
  // tp. Empty: the model's plan.
  TensorPlan tensor = {};
  // Shards activations between blocks along the sequence, too.
  bool sequence_parallel = false;
  // cp. ulysses needs cp x tp to divide the heads.
  ContextMethod context = ContextMethod::ring;
  ContextBalance balance = ContextBalance::zigzag;
  // cp, and tp with sequence_parallel: the dim of inputs and targets that is the sequence.
  int sequence_dim = 1;
  // On every mesh: recomputes or offloads the activations of modules that these patterns match.
  std::vector<std::string> activation_checkpointing = {};
  ActivationOptions activations = {};
  // fsdp. Default units: the model's blocks, and modules in several pieces (tied weights).
  // `ignored`, here and in `data`, requires a mesh with no axes except pp, dp and fsdp, and a model
  // without mixtures.
  ShardOptions shard = {};
  // dp, ep and cp, on a mesh without fsdp. A hook requires a mesh without pp and a model without
  // mixtures, because each part has its own handle.
  DistributedDataParallelOptions data = {};
  // pp.
  PipelinePlan pipeline = {};
  // On every mesh: the number of parts into which step() divides its rows. With pp, these are the
  // micro-batches of the schedule; otherwise gradients are accumulated.
  int micro_batches = 1;
};

struct ParallelModelParts;

class [[nodiscard]] ParallelModel : public Handle {
 public:
  using Options = ParallelOptions;

  // Attached to no module.
  ParallelModel() = default;
  // Use parallelize().
  ParallelModel(Handle handle, std::shared_ptr<ParallelModelParts> parts);

  // Runs forward, loss and backward on this rank's rows; adds to the gradients. Inputs and targets
  // are tensors with the same number of rows in dim 0, which are divided into micro-batches as
  // evenly as possible (10 rows in 4 micro-batches: 2, 3, 2, 3). `loss` returns the mean over the
  // rows of a micro-batch, given the model's outputs and the targets of these rows; it is called on
  // the ranks with the outputs. Under tp and cp, both are global tensors
  // (lockstep/global/tensor.h). An empty `loss` means the plan's.
  //
  // Returns the mean over this rank's rows, equal on all ranks that passed the same rows. Gradients
  // are averaged over data() in the last backward; inside no_sync() they stay local. For the mean
  // of all rows: gpt.data().all_reduce(loss, Op::average).wait().
  //
  // An invalid batch (no rows, fewer rows than micro-batches, different row counts, inputs that
  // require grad) throws InvalidArgument on every rank that passed it and on the ranks of its
  // pipeline, before gradients are computed. The groups stay usable if all ranks of data() passed
  // an invalid batch. Otherwise, the other ranks wait for this rank in the collectives of their
  // step until their timeout, or until this rank exits: so always pass at least one row per
  // micro-batch on every rank. After an exception on one rank, this rank throws it; with pp, all
  // other ranks throw Aborted, which names rank, action and text; without pp, they throw PeerLost
  // or Timeout, and on a mesh with fsdp possibly Aborted.
  at::Tensor step(const Tensors& inputs, const Tensors& targets, const PipelineLoss& loss = {});
  // Returns the loss of step() without gradients, in the module's mode (train() or eval()). One row
  // per rank is enough: the number of micro-batches is reduced to the fewest rows of a rank of
  // data(). An invalid batch on any rank throws InvalidArgument on all of them, here and in
  // forward(); the groups stay usable.
  [[nodiscard]] at::Tensor evaluate(const Tensors& inputs, const Tensors& targets,
                                    const PipelineLoss& loss = {});
  // Returns the model's outputs for this rank's rows, without gradients, whole on every rank that
  // passed these rows. One row per rank is enough. An output without dims has one element per
  // micro-batch.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

  // For a custom loop on a mesh with cp and without pp that calls the module's forward(): returns
  // this rank's part of each sequence, as global tensors. Without cp, returns the batch unchanged.
  // Collective over tp and cp: the first calls, and then ever fewer, compare the batches of these
  // ranks; throws Mismatch if they differ.
  [[nodiscard]] Tensors cut(const Tensors& batch) const;

  // Not collective. The ranks with their own rows: those of dp, ep and fsdp, in this order.
  [[nodiscard]] Group data() const;
  // Not collective. The mesh that parallelize() was given.
  [[nodiscard]] const Mesh& mesh() const;
  // Not collective. Ranks that must draw the same random numbers (dropout under tp and cp) have the
  // same number; all others have different ones: torch::manual_seed(seed + gpt.random_stream()).
  [[nodiscard]] int random_stream() const;
  // Not collective. Describes the effect of each axis on the model, in a few lines.
  [[nodiscard]] std::string plan() const;
  // Not collective. The times of the latest step() with pp; zeros otherwise.
  [[nodiscard]] Pipeline::Measured measured() const;
  // Not collective. The counts of options.activation_checkpointing; zeros without it.
  [[nodiscard]] ActivationCheckpoints::Counts checkpoints() const;

 private:
  friend struct ParallelModelParts;

  [[nodiscard]] ParallelModelParts& parts() const;

  std::shared_ptr<ParallelModelParts> parts_;
};

// Collective over the mesh; blocks. The values are those of the first rank along the mesh's dp, ep,
// cp, fsdp and tp. A model of deferred() allocates on a rank at most its shards and one whole
// parameter. Shares ownership of the model.
//
// Every rank throws before anything has changed: InvalidArgument for an unknown axis, an axis
// without a field in the plan, blocks, heads or experts that the number of ranks does not divide,
// or a pattern that matches nothing; Mismatch if ranks have different models or options.
[[nodiscard]] ParallelModel parallelize(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                                        ParallelPlan plan, ParallelOptions options = {});

namespace detail {

// Returns the model's forward() if it takes tensors and is neither a template nor overloaded.
template <typename Impl>
StageForward own_forward(const torch::nn::ModuleHolder<Impl>& model) {
  if constexpr (requires { stage_of(std::string(), model.ptr(), &Impl::forward); })
    return stage_of("model", model).forward;
  return {};
}

}  // namespace detail

// Takes the plan from parallel_plan(model). A model without that function can train on dp and fsdp.
template <typename Net>
  requires std::derived_from<Net, torch::nn::ModuleHolder<typename Net::ContainedType>>
[[nodiscard]] ParallelModel parallelize(const Net& model, const Mesh& mesh,
                                        ParallelOptions options = {}) {
  ParallelPlan plan;
  if constexpr (requires { parallel_plan(model); }) plan = parallel_plan(model);
  if (!plan.forward) plan.forward = detail::own_forward(model);
  return parallelize(std::shared_ptr<torch::nn::Module>(model.ptr()), mesh, std::move(plan),
                     std::move(options));
}

// Does not compile: the error message says what to do instead.
template <TorchScript Model>
ParallelModel parallelize(const Model& /*model*/, const Mesh& /*mesh*/,
                          const ParallelOptions& /*options*/ = {}) {
  refuse_torchscript<Model>();
}

}  // namespace lockstep

#pragma GCC visibility pop
