// parallelize(): one model on one mesh, by every strategy that the mesh has an axis for.
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
// The same program runs on every mesh; with equal shares of a batch losses differ by rounding only.
// Axes, in any order:
//
//   pp     stages of a pipeline                       pipeline/pipeline.h
//   dp     copies, each with rows of its own          data/distributed_data_parallel.h
//   ep     owners of experts, with rows of their own
//   cp     parts of every sequence
//   fsdp   shards, each with rows of its own          sharded/fully_shard.h
//   tp     parts of every layer                       tensor/plan.h
//
// An absent axis has one rank, and options for it are ignored. Of the axes of one rank only fsdp
// does something: the rank keeps its parameters as ShardOptions say (compute_dtype, offload). The
// headers above say what each strategy does to the module and what its errors are.
//
// tp and cp: parameters become global tensors (lockstep/global/tensor.h), and operations of the
// model's forward() run on each rank's parts by their rules. So do outputs. An optimizer is built
// on the handle's parameters(): the module's are no leaves of autograd any more, and their .grad is
// an error that says so. A batch, random numbers and other plain tensors must be the same on these
// ranks: another batch or another state of the generator is a Mismatch of the first steps, or of
// one of the next that are compared (GlobalOptions::replicate_plain).
//
//   tp   a pair of a Colwise() and a Rowwise() layer costs one all_reduce in forward and one in
//        backward; with sequence_parallel (Korthikanti et al., arXiv:2205.05198) a reduce_scatter
//        and an all_gather each, and activations between pairs are cut along the sequence
//   cp   attention mixes tokens. ring: keys and values go from rank to rank (Liu, Zaharia and
//        Abbeel, arXiv:2310.01889), n - 1 messages in forward and 2n - 1 in backward; ulysses:
//        heads are cut instead (Jacobs et al., arXiv:2309.14509), 4 all_to_alls in each, and n
//        divides the heads. Any number of tokens: the last ranks may have fewer
//   ep   the experts of a models::Mixture are divided, and tokens travel to them and back: two
//        all_to_alls in forward and two in backward. On every mesh tokens are counted, dropped and
//        balanced over all rows of a micro-batch, as on one process
//
// Rows: a batch is divided over the ranks of data(). Each of them passes its rows to step(); ranks
// of pp, cp and tp pass the same rows. A batch that data().size() does not divide loses no row.
// Ranks weigh alike: losses and gradients are means of the ranks' means, so a row of a smaller
// share counts more.
//
//   lockstep::Group data = gpt.data();
//   at::Tensor own = batch.tensor_split(data.size())[data.rank()];
//
// Without an axis pp the module's own forward() and backward() work as with every other handle;
// step() is then a loop over the micro-batches.
//
// step(), evaluate() and forward() are collective over all ranks of the mesh. Threads: one thread
// at a time per ParallelModel.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/module/torchscript.h>
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

// How a sequence is cut. Under a causal mask the last tokens see the most keys: in zigzag order
// each rank has one part from the front and one from the back.
enum class ContextBalance : std::uint8_t { contiguous, zigzag };

struct PipelinePlan {
  std::string schedule = "1f1b";  // plan::schedule_names()
  int stages_per_rank = 0;        // 0: plan::stages_per_rank(schedule)
};

// The same on all ranks.
struct ParallelOptions {
  // tp. Empty: the model's plan.
  TensorPlan tensor = {};
  // Activations between blocks are cut along the sequence too.
  bool sequence_parallel = false;
  // cp. ulysses needs cp x tp to divide the heads.
  ContextMethod context = ContextMethod::ring;
  ContextBalance balance = ContextBalance::zigzag;
  // cp, and tp with sequence_parallel: the dim of inputs and targets that is the sequence.
  int sequence_dim = 1;
  // On every mesh: activations of the modules that these patterns name are recomputed in
  // backward(), of every nth of them.
  std::vector<std::string> activation_checkpointing = {};
  int checkpoint_every = 1;
  // fsdp. Without units: the model's blocks, and modules of several pieces (tied weights). Here and
  // in `data`, `ignored` needs a mesh of pp, dp and fsdp, and a model without mixtures.
  ShardOptions shard = {};
  // dp, ep and cp, on a mesh without fsdp. A hook needs a mesh without pp, and a model without
  // mixtures: each part has a handle of its own.
  DataParallelOptions data = {};
  // pp.
  PipelinePlan pipeline = {};
  // On every mesh: parts into which step() cuts its rows. With pp these are the micro-batches of
  // the schedule; otherwise gradients are accumulated.
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

  // Forward, loss and backward of this rank's rows; adds to the gradients. Inputs and targets are
  // tensors with equally many rows in dim 0, which are cut into micro-batches as equally as can be
  // (10 rows in 4 micro-batches: 2, 3, 2, 3). `loss` is the mean over the rows of a micro-batch: a
  // function of the model's outputs and the targets of these rows, called where the outputs are.
  // Under tp and cp these are global tensors (lockstep/global/tensor.h). An empty `loss` is the
  // plan's.
  //
  // Returns the mean over this rank's rows, equal on all ranks that passed the same rows. Gradients
  // are averaged over data() in the last backward; inside no_sync() they stay local. For a log of
  // all rows: gpt.data().all_reduce(loss, Op::average).wait().
  //
  // An invalid batch (no rows, fewer rows than micro-batches, different row counts, inputs that
  // require a gradient) throws InvalidArgument on every rank that was given it and on the ranks of
  // its pipeline, before gradients are computed. The groups stay usable if all ranks of data()
  // were given such a batch; otherwise the other ranks wait for this one in the collectives of
  // their step, until their deadline or until it ends: pass a row per micro-batch on every rank. An
  // exception on one rank: with pp all ranks throw Aborted, which names rank, action and text;
  // without pp the others throw PeerLost or Timeout, and on a mesh with fsdp also Aborted.
  at::Tensor step(const Tensors& inputs, const Tensors& targets, const PipelineLoss& loss = {});
  // The loss of step() without gradients, in the module's mode (train() or eval()). One row on each
  // rank is enough: there are as many micro-batches as the fewest rows of a rank of data(), if
  // these are fewer. An invalid batch on any rank throws InvalidArgument on all of them, here and
  // in forward(); the groups stay usable.
  [[nodiscard]] at::Tensor evaluate(const Tensors& inputs, const Tensors& targets,
                                    const PipelineLoss& loss = {});
  // The model's outputs of this rank's rows, without gradients, whole on every rank that passed
  // these rows. One row on each rank is enough. An output without dims has one element per
  // micro-batch.
  [[nodiscard]] Tensors forward(const Tensors& inputs);

  // Local. For a loop of one's own on a mesh with cp and without pp, which calls the module's
  // forward(): this rank's part of each sequence, as global tensors. The batch as it is without cp.
  [[nodiscard]] Tensors cut(const Tensors& batch) const;

  // Local. The ranks that have rows of their own: those of dp, ep and fsdp, in this order.
  [[nodiscard]] Group data() const;
  // Local. The mesh that parallelize() was given.
  [[nodiscard]] const Mesh& mesh() const;
  // Local. Ranks that must draw the same random numbers (dropout under tp and cp) have the same
  // number, all others another one: torch::manual_seed(seed + gpt.random_stream()).
  [[nodiscard]] int random_stream() const;
  // Local. What each axis does to the model, in a few lines.
  [[nodiscard]] std::string plan() const;
  // Local. Of the latest step(), with pp; zeros otherwise.
  [[nodiscard]] Pipeline::Measured measured() const;
  // Local. Of options.activation_checkpointing; without it the counts are zero.
  [[nodiscard]] ActivationCheckpoints::Counts checkpoints() const;

 private:
  friend struct ParallelModelParts;

  [[nodiscard]] ParallelModelParts& parts() const;

  std::shared_ptr<ParallelModelParts> parts_;
};

// Collective over the mesh, and blocks. Values are those of the first rank of the mesh's dp, ep,
// cp, fsdp and tp; a model of deferred() gets no more memory on a rank than its parts and one whole
// parameter. Shares ownership of the model.
//
// Every rank throws, before anything has changed: InvalidArgument for an unknown axis, an axis that
// the plan says nothing about, blocks, heads or experts that the ranks do not divide, a pattern
// that names nothing; Mismatch if ranks have different models or options.
[[nodiscard]] ParallelModel parallelize(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh,
                                        ParallelPlan plan, ParallelOptions options = {});

namespace detail {

// The forward() of a model, if it has one of tensors that is no template and not overloaded.
template <typename Impl>
StageForward own_forward(const torch::nn::ModuleHolder<Impl>& model) {
  if constexpr (requires { stage_of(std::string(), model.ptr(), &Impl::forward); })
    return stage_of("model", model).forward;
  return {};
}

}  // namespace detail

// Takes the plan from parallel_plan(model). A model without that function trains on dp and fsdp.
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

// Does not compile: says what to do instead.
template <TorchScript Model>
ParallelModel parallelize(const Model& /*model*/, const Mesh& /*mesh*/,
                          const ParallelOptions& /*options*/ = {}) {
  refuse_torchscript<Model>();
}

}  // namespace lockstep

#pragma GCC visibility pop
