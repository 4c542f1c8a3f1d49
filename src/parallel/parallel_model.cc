#include "parallel/parallel_model.h"

#include "base/check.h"
#include "base/escaped.h"
#include "global/global_tensor.h"
#include "global/mesh_context.h"
#include "parallel/pipeline/batch.h"
#include "parallel/pipeline/pipeline_state.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

using pipeline::StepKind;

const PipelineLoss& loss_of(const ParallelModelParts& own, const PipelineLoss& given,
                            const char* call) {
  const PipelineLoss& loss = given ? given : own.plan_loss;
  check(loss != nullptr,
        "{}: the loss must not be empty: pass one, or set ParallelPlan::loss in "
        "parallel_plan(const Net&)",
        call);
  return loss;
}

Tensors cut_all(const ParallelModelParts& own, const Tensors& batch) {
  if (!own.sequences) return batch;
  Tensors parts;
  for (const at::Tensor& one : batch) parts.push_back(own.sequences->cut(one));
  return parts;
}

// Collective over data(). Returns the fewest rows of any rank; 0 if some rank has no batch. Ranks
// with different numbers of micro-batches would make different collective calls. Ranks of pp may
// pass nothing if their stages need neither inputs nor targets.
std::int64_t fewest_rows(const ParallelModelParts& own, StepKind kind, const Tensors& inputs,
                         const Tensors* targets, const PipelineState* pipeline) {
  constexpr std::int64_t not_given = std::numeric_limits<std::int64_t>::max();
  const auto has_stage = [&](int rank) { return own.whole || own.stages.rank() == rank; };
  const auto rows_in = [&](const Tensors& tensors, bool is_needed) {
    if (tensors.empty() && !is_needed) return not_given;
    return std::max<std::int64_t>(0, pipeline::rows_of_batch(&tensors, kind));
  };
  std::int64_t rows = rows_in(inputs, has_stage(pipeline ? pipeline->first_rank() : 0));
  if (targets != nullptr) {
    const std::int64_t other = rows_in(*targets, has_stage(pipeline ? pipeline->last_rank() : 0));
    const bool differ = rows != not_given && other != not_given && rows != other;
    rows = differ ? 0 : std::min(rows, other);
  }
  const at::Tensor fewest = at::full({1}, rows, at::kLong);
  Group data = own.data;
  data.all_reduce(fewest, Op::min, {.tag = "fewest rows"}).wait();
  return fewest.item<std::int64_t>();
}

// Without pp: a plain loop over the micro-batches, as in one process.
class Loop {
 public:
  Loop(const ParallelModelParts& own, StepKind kind, const Tensors& inputs, const Tensors* targets)
      : own_(own),
        kind_(kind),
        batch_(alone_, kind,
               {.inputs = &inputs,
                .targets = targets,
                .fewest_rows = kind == StepKind::train
                                   ? std::numeric_limits<std::int64_t>::max()
                                   : fewest_rows(own, kind, inputs, targets, nullptr)},
               own.micro_batches, 0, 0, {}) {}

  // The mean loss of the rows. In a training step gradients stay on this rank until the last
  // backward, which averages them.
  at::Tensor loss(Handle& handle, const PipelineLoss& loss_of_rows) {
    at::AutoGradMode mode(kind_ == StepKind::train);
    at::Tensor sum;
    for (int i = 0; i < batch_.micro_batches(); ++i) {
      std::optional<NoSync> local;
      if (i + 1 < batch_.micro_batches() && kind_ == StepKind::train)
        local.emplace(handle.no_sync());
      const Tensors outputs = forward(i);
      const at::Tensor mean =
          pipeline::plain_loss(loss_of_rows(outputs, cut_all(own_, batch_.targets_of(i))), kind_);
      const double share = batch_.share_of(i);
      if (kind_ == StepKind::train) (share == 1 ? mean : mean * share).backward();
      const at::Tensor part = mean.detach().reshape({}) * share;
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  }

  Tensors outputs() {
    at::NoGradGuard no_grad;
    std::vector<Tensors> all;
    for (int i = 0; i < batch_.micro_batches(); ++i) {
      Tensors& outputs = all.emplace_back(forward(i));
      for (at::Tensor& one : outputs) one = global::plain(one);
    }
    return pipeline::joined(all);
  }

 private:
  [[nodiscard]] Tensors forward(int micro_batch) const {
    return own_.whole->forward(cut_all(own_, batch_.inputs_of(micro_batch)));
  }

  const ParallelModelParts& own_;
  const StepKind kind_;
  Group alone_;  // ranks of one model have the same rows
  pipeline::Batch batch_;
};

// Tensors of one rank of a pipeline, on all of its ranks.
Tensors broadcast_all(Group& stages, Tensors tensors, int root, c10::Device device) {
  const std::string tag = "outputs of a pipeline";
  at::Tensor message = at::empty({pipeline::spec_numbers}, at::kLong);
  if (stages.rank() == root) message = pipeline::message_of(pipeline::specs_of(tensors), tag);
  stages.broadcast(message, root, {.tag = tag}).wait();
  if (stages.rank() != root)
    for (const pipeline::TensorMeta& spec : pipeline::specs_in(message, tag))
      tensors.push_back(at::empty(spec.sizes, at::TensorOptions(spec.dtype).device(device)));
  for (at::Tensor& one : tensors) {
    one = one.contiguous();
    stages.broadcast(one, root, {.tag = tag}).wait();
  }
  return tensors;
}

// Gathers whole sequences; collective over the ranks that have the other parts of them.
Tensors whole_sequences(const pipeline::SequenceSharding& sequences, const Tensors& parts) {
  Tensors whole;
  const PipelineLoss take = [&whole](const Tensors& outputs, const Tensors& /*targets*/) {
    for (const at::Tensor& one : outputs) whole.push_back(global::plain(one));
    return at::Tensor();
  };
  (void)sequences.loss(take)(parts, {});
  return whole;
}

}  // namespace

ParallelModel::ParallelModel(Handle handle, std::shared_ptr<ParallelModelParts> parts)
    : Handle(std::move(handle)), parts_(std::move(parts)) {}

ParallelModelParts& ParallelModel::parts() const {
  (void)state();
  return *parts_;
}

at::Tensor ParallelModel::step(const Tensors& inputs, const Tensors& targets,
                               const PipelineLoss& loss) {
  ParallelModelParts& own = parts();
  const PipelineLoss& of_rows = loss_of(own, loss, "step()");
  if (own.whole) return Loop(own, StepKind::train, inputs, &targets).loss(*this, of_rows);
  *own.step_loss = of_rows;
  return static_cast<PipelineState&>(*state())
      .run(StepKind::train, inputs, targets, own.micro_batches)
      .loss;
}

at::Tensor ParallelModel::evaluate(const Tensors& inputs, const Tensors& targets,
                                   const PipelineLoss& loss) {
  ParallelModelParts& own = parts();
  const PipelineLoss& of_rows = loss_of(own, loss, "evaluate()");
  if (own.whole) return Loop(own, StepKind::evaluate, inputs, &targets).loss(*this, of_rows);
  *own.step_loss = of_rows;
  auto& pipeline = static_cast<PipelineState&>(*state());
  return pipeline
      .run(StepKind::evaluate, inputs, targets,
           fewest_rows(own, StepKind::evaluate, inputs, &targets, &pipeline))
      .loss;
}

Tensors ParallelModel::forward(const Tensors& inputs) {
  ParallelModelParts& own = parts();
  if (own.whole) return Loop(own, StepKind::forward, inputs, nullptr).outputs();
  auto& pipeline = static_cast<PipelineState&>(*state());
  at::NoGradGuard no_grad;
  Tensors outputs = pipeline
                        .run(StepKind::forward, inputs, {},
                             fewest_rows(own, StepKind::forward, inputs, nullptr, &pipeline))
                        .outputs;
  try {
    if (own.sequences && !outputs.empty()) outputs = whole_sequences(*own.sequences, outputs);
    return broadcast_all(own.stages, std::move(outputs), pipeline.last_rank(), pipeline.device());
  } catch (const std::exception& error) {  // other ranks wait for these outputs
    pipeline.abort(formatted("forward(): outputs failed: {}", escaped_line(error.what(), 2000)));
    throw;
  }
}

Tensors ParallelModel::cut(const Tensors& batch) const { return cut_all(parts(), batch); }

Group ParallelModel::data() const { return parts().data; }

const Mesh& ParallelModel::mesh() const { return parts().mesh; }

int ParallelModel::random_stream() const {
  return parts().data.rank() * parts().stages.size() + parts().stage_place;
}

std::string ParallelModel::plan() const { return parts().plan; }

Pipeline::Measured ParallelModel::measured() const {
  if (parts().whole) return {};
  return static_cast<PipelineState&>(*state()).measured();
}

ActivationCheckpoints::Counts ParallelModel::checkpoints() const {
  return parts().checkpoints ? parts().checkpoints->counts() : ActivationCheckpoints::Counts{};
}

}  // namespace lockstep

namespace lockstep::pipeline {

SequenceSharding::SequenceSharding(const Mesh& tensors, Placement cut)
    : tensors_(tensors),
      dim_(cut.dim()),
      placements_(tensors.axes().size()),
      sums_(tensors.axes().size()) {
  const auto place = static_cast<std::size_t>(tensors.layout().axis("cp"));
  placements_[place] = cut;
  sums_[place] = Partial();
  GlobalOptions global = global::MeshContext::of(tensors_).options;
  global.replicate_plain = true;
  set_global_options(tensors_, global);
}

at::Tensor SequenceSharding::cut(const at::Tensor& whole) const {
  check(whole.defined() && !is_global(whole),
        "cut: expected a plain tensor, found {}; a batch is cut once",
        whole.defined() ? "a global one" : "an undefined one");
  check(whole.dim() > dim_,
        "cut: expected a tensor whose dim {} is the sequence (sequence_dim), found one of {} dims",
        dim_, whole.dim());
  auto& context = global::MeshContext::of(tensors_);
  context.plain_check.look(whole, "cut", context.all());
  return redistribute(from_local(whole, tensors_, Placements(placements_.size())), placements_);
}

// The length of the whole sequence is not known from one rank's part.
at::Tensor SequenceSharding::of_part(const at::Tensor& part) const {
  if (part.dim() <= dim_) return from_local(part, tensors_, sums_);
  at::Tensor length = at::tensor({part.size(dim_)}, at::kLong);
  tensors_["cp"].all_reduce(length, Op::sum, {.tag = "tokens of a stage"}).wait();
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(dim_)] = length.item<std::int64_t>();
  return from_local(part, tensors_, placements_, std::move(sizes));
}

at::Tensor SequenceSharding::part_of(const at::Tensor& output) const {
  const at::Tensor whole =
      is_global(output) ? output : from_local(output, tensors_, Placements(placements_.size()));
  return local_tensor(redistribute(whole, output.dim() > dim_ ? placements_ : sums_));
}

std::vector<Stage> SequenceSharding::stages(std::vector<Stage> stages) const {
  for (std::size_t i = 0; i < stages.size(); ++i)
    stages[i].forward = [own = *this, is_first = i == 0,
                         forward = std::move(stages[i].forward)](const Tensors& inputs) {
      Tensors given, parts;
      for (const at::Tensor& input : inputs)
        given.push_back(is_first ? own.cut(input) : own.of_part(input));
      for (const at::Tensor& output : forward(given)) parts.push_back(own.part_of(output));
      return parts;
    };
  return stages;
}

PipelineLoss SequenceSharding::loss(PipelineLoss loss) const {
  return [own = *this, loss = std::move(loss)](const Tensors& outputs, const Tensors& targets) {
    Tensors whole, cut;
    for (const at::Tensor& output : outputs) whole.push_back(own.of_part(output));
    for (const at::Tensor& target : targets) cut.push_back(own.cut(target));
    return loss(whole, cut);
  };
}

}  // namespace lockstep::pipeline
