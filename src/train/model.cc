#include "train/model.h"

#include "base/check.h"
#include "base/format.h"
#include "parallel/tensor/experts.h"
#include "train/micro_batches.h"
#include "train/option_table.h"

#include <lockstep/comm/together.h>
#include <lockstep/global/tensor.h>
#include <lockstep/models/generate.h>
#include <lockstep/parallel/join.h>
#include <lockstep/plan/schedule.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace lockstep::train {
namespace {

constexpr std::string_view of_hook = "hook.";

Mesh mesh_of(const Options& options, const Group& world) {
  const bool is_divided = level_of(options).has_value();
  std::vector<MeshAxis> axes = division_of(options, world.size()).axes;
  if (axes.empty()) axes = {{std::string(is_divided ? shards_axis : copies_axis), world.size()}};
  // parallelize() divides the model wherever it finds the axis, on one rank, too.
  if (!is_divided)
    std::erase_if(axes, [](const MeshAxis& axis) { return axis.name == shards_axis; });
  if (axes.empty()) axes = {{std::string(copies_axis), 1}};
  return {world, std::move(axes)};
}

// The axes of the ranks that have rows of their own: those of ParallelModel::data().
const std::vector<std::string> learner_axes = {"dp", "ep", "fsdp"};

}  // namespace

TrainedModel::TrainedModel(const Options& options, Task& task, Group world)
    : RunStrategy({.learners = Group(), .processes = world.size()}),
      options_(options),
      task_(task),
      world_(std::move(world)),
      mesh_(mesh_of(options, world_)),
      hook_(hook_of_options(options)) {
  facts_.learners = mesh_.sub_mesh(learner_axes).group();
  facts_.random_stream = facts_.learners.rank();
  if (hook_) facts_.kind = "hook " + hook_->describe();
}

void TrainedModel::attach(std::shared_ptr<torch::nn::Module> module, RunLength) {
  module_ = std::move(module);
  if (options_.sync_batch_norm) sync_.emplace(module_, world_);
  handle_ = &make_handle(module_);
  std::shared_ptr<optim::SharedUpdate> shared;
  if (divides_updates()) shared = handle().shared_update();
  divides_update_ = shared != nullptr;
  own_optimizer_ = make_optimizer(options_, handle().named_parameters(), handle().state_memory(),
                                  std::move(shared));
  optimizer_ = own_optimizer_.get();
}

Handle& TrainedModel::make_handle(const std::shared_ptr<torch::nn::Module>& module) {
  compose(module, mesh_);
  facts_.random_stream = model_.random_stream();
  return model_;
}

ParallelOptions TrainedModel::parallel_options() const {
  ParallelOptions how{.sequence_parallel = options_.sequence_parallel,
                      .context = options_.context_method,
                      .shard = options_.sharding,
                      .data = {.hook = hook_},
                      .pipeline = {.schedule = options_.pipeline},
                      .micro_batches = options_.accumulate};
  how.shard.level = level_of(options_).value_or(ShardLevel::full);
  how.shard.units.clear();  // the plan's
  if (how.shard.compute_dtype && !how.shard.reduce_dtype) how.shard.reduce_dtype = at::kFloat;
  return how;
}

void TrainedModel::check_stages(const ParallelPlan& plan) const {
  check_input(!plan.pieces.empty() && plan.loss,
              "--mesh {}: the task {} has no pieces and loss for stages (Task::parallel_plan())",
              mesh_text(options_.mesh), task_.name());
  const int each = plan::stages_per_rank(options_.pipeline);
  try {
    (void)plan::make_schedule(
        options_.pipeline,
        {.stages = mesh_.size("pp") * each, .chunks = each, .micro_batches = options_.accumulate});
  } catch (const InvalidArgument& error) {
    throw BadInput(formatted("--pipeline {} with --accumulate {} micro-batches on --mesh {}: {}",
                             options_.pipeline, options_.accumulate, mesh_text(options_.mesh),
                             error.what()));
  }
}

void TrainedModel::compose(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh) {
  ParallelPlan plan = task_.parallel_plan();
  ParallelOptions how = parallel_options();
  if (options_.checkpoint_every > 0) {
    how.activation_checkpointing = {plan.blocks.front()};
    how.checkpoint_every = options_.checkpoint_every;
  }
  loss_ = plan.loss;
  if (has_stages()) check_stages(plan);
  const bool counts_tokens = !tensor_parallel::mixtures_of(*module).empty();
  if (counts_tokens) check_mixtures(options_, task_, world_.size());
  try {
    model_ = parallelize(module, mesh, std::move(plan), std::move(how));
  } catch (const InvalidArgument& error) {
    if (options_.mesh.empty()) throw;
    throw BadInput(formatted("--mesh {}: {}", mesh_text(options_.mesh), error.what()));
  }
  facts_.in_step = level_of(options_) || facts_.learners.size() < world_.size() ||
                   (mesh.group().size() > 1 && counts_tokens);
}

void TrainedModel::count_bytes(const std::function<void()>& calls) {
  const std::int64_t before = handle().group().traffic().bytes;
  calls();
  sent_bytes_ += handle().group().traffic().bytes - before;
}

Batch TrainedModel::cut(Batch batch) const {
  if (mesh_.size(context_axis) == 1) return batch;
  const Tensors parts = model_.cut({batch.data, batch.target});
  return {parts[0], parts[1], std::move(batch.more)};
}

// Gradients are averaged over ranks, so where ranks have other numbers of rows each counts by its
// own.
double TrainedModel::backward(const StepRows& rows, optim::GradScaler& scaler) {
  if (has_stages()) return backward_stages(rows.batch, scaler);
  if (rows.of_all.empty()) return backward_parts(rows.batch, 1, scaler);
  const std::int64_t own = rows.of_all[static_cast<std::size_t>(world_.rank())];
  const double of_rank = static_cast<double>(own) * static_cast<double>(rows.of_all.size()) /
                         static_cast<double>(std::reduce(rows.of_all.begin(), rows.of_all.end()));
  if (std::ranges::count(rows.of_all, 0) == 0) return backward_parts(rows.batch, of_rank, scaler);
  // Ranks without rows make the calls that the others make.
  std::vector<Joinable*> joinables{&handle().joinable()};
  if (sync_) joinables.push_back(&sync_->joinable());
  Join others(std::move(joinables));
  const double loss = own > 0 ? backward_parts(rows.batch, of_rank, scaler) : 0;
  others.finish(nullptr);  // the update comes when all have come here
  return loss;
}

double TrainedModel::backward_parts(const Batch& batch, double of_rank, optim::GradScaler& scaler) {
  return accumulate(handle(), batch, options_.accumulate,
                    [&](const Batch& part, double share) {
                      return backward_part(part, share * of_rank, scaler);
                    }) /
         of_rank;
}

double TrainedModel::backward_stages(const Batch& whole, const optim::GradScaler& scaler) {
  const double scale = scaler.enabled() ? scaler.state().scale : 1;
  const PipelineLoss scaled = [&](const Tensors& outputs, const Tensors& targets) {
    at::Tensor loss = loss_(outputs, targets);
    if (options_.sharding.compute_dtype) loss = loss.to(at::kFloat);
    return scale == 1 ? loss : loss * scale;
  };
  const Batch batch = cast_batch(whole, options_.sharding.compute_dtype);
  return model_.step({batch.data}, {batch.target}, scaled).item<double>() / scale;
}

double TrainedModel::backward_part(const Batch& part, double share, optim::GradScaler& scaler) {
  double value = 0;
  count_bytes([&] {
    at::Tensor loss = [&] {
      RECORD_USER_SCOPE("forward");
      return task_.loss(cut(cast_batch(part, options_.sharding.compute_dtype)));
    }();
    if (options_.sharding.compute_dtype)
      loss = loss.to(at::kFloat);  // float16 has no room for its scale
    {
      RECORD_USER_SCOPE("backward");
      scaler.scale(share == 1 ? loss : loss * share).backward();
    }
    value = loss.item<double>() * share;
  });
  return value;
}

void TrainedModel::update(double lr, const optim::GradientTransform& transform,
                          optim::GradScaler& scaler) {
  set_learning_rate(*optimizer_, lr);
  const auto step = [&] { scaler.step(*optimizer_, transform); };
  // What the ranks of a host give each other of one update goes over no network.
  if (divides_update_) {
    step();
  } else {
    count_bytes(step);
  }
  scaler.update();
  if (options_.sharding.reduce_in_step)
    handle().zero_grad();  // or an evaluation computes averages for all
}

// evaluate() weighs rows alike, and totals weigh what Task::weight_of() counts of them. The last
// stage computes losses in the order of the micro-batches.
Totals TrainedModel::measure(const Batch& batch) {
  if (!has_stages()) return task_.measure(cut(batch));
  const std::int64_t all = batch.data.size(0);
  std::int64_t next = 0;
  const PipelineLoss weighed = [&](const Tensors& outputs, const Tensors& targets) {
    const std::int64_t rows = targets.front().size(0);
    const Batch own{batch.data.narrow(0, next, rows), batch.target.narrow(0, next, rows), {}};
    next += rows;
    return loss_(outputs, targets) * (task_.weight_of(own) / static_cast<double>(rows));
  };
  const at::Tensor mean = model_.evaluate({batch.data}, {batch.target}, weighed);
  return {.loss = mean.item<double>() * static_cast<double>(all),
          .targets = task_.weight_of(batch)};
}

// Of the token behind one row: these alone go from the last stage to the other ranks.
at::Tensor TrainedModel::next_logits(const at::Tensor& seen) {
  at::Tensor logits;
  const PipelineLoss keep = [&](const Tensors& outputs, const Tensors& /*targets*/) {
    const at::Tensor whole = is_global(outputs[0]) ? full_tensor(outputs[0]) : outputs[0];
    logits = whole.select(1, -1).to(at::kDouble).contiguous();
    return at::zeros({});
  };
  (void)model_.evaluate({seen}, {seen}, keep);
  Group stages = mesh_["pp"];
  at::Tensor size = at::tensor({logits.defined() ? logits.size(1) : 0}, at::kLong);
  stages.all_reduce(size, Op::sum, {.tag = "tokens of a sample"}).wait();
  if (!logits.defined()) logits = at::zeros({1, size.item<std::int64_t>()}, at::kDouble);
  stages.all_reduce(logits, Op::sum, {.tag = "logits of a sample"}).wait();
  return logits;
}

std::string TrainedModel::sample(std::int64_t length) {
  if (!has_stages()) return task_.sample(length);
  return task_.sample_by(length, [&](const at::Tensor& ids, std::int64_t count,
                                     const models::GenerateOptions& how) {
    return models::generate_tokens(*module_, ids, count, ids.size(1), how,
                                   [this](const at::Tensor& seen) { return next_logits(seen); });
  });
}

std::map<std::string, at::Tensor> TrainedModel::own() {
  std::map<std::string, at::Tensor> own;
  if (!hook_) return own;
  for (auto& [name, tensor] : hook_->state()) own.emplace(std::string(of_hook) + name, tensor);
  return own;
}

void TrainedModel::take_own(const std::map<std::string, at::Tensor>& own) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : own)
    if (name.starts_with(of_hook)) state.emplace(name.substr(of_hook.size()), tensor);
  if (hook_) hook_->load_state(state);
}

void TrainedModel::save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                        checkpoint::SaveOptions options, checkpoint::AsyncSaver* saver) {
  options.own = own();
  if (saver != nullptr)
    saver->save(out, handle(), saved_optimizer(), state, options);
  else
    checkpoint::save(out, handle(), saved_optimizer(), state, options);
}

// The folder was verified when it was chosen.
void TrainedModel::load(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> own;
  const checkpoint::TrainingState state =
      checkpoint::load(folder, handle(), *optimizer_, {.verify = false, .own = &own});
  begin_at(state.step);
  const auto kind_before = state.progress.find(kind_entry);
  const bool is_same_kind =
      kind_before != state.progress.end() && kind_before->second == facts_.kind;
  if (!is_same_kind || state.ranks != facts_.processes) return;
  together(world_, [&] {
    try {
      take_own(own);
    } catch (const BadInput& error) {
      throw BadInput(formatted("{}: {}", folder.string(), error.what()));
    }
  });
}

// Groups of several axes are not counted, nor those of fully_shard().
std::vector<std::pair<std::string, std::string>> TrainedModel::results() {
  if (world_.size() == 1 || facts_.in_step) return {};
  return {{"sent_bytes", formatted("{}", sent_bytes_)}};
}

}  // namespace lockstep::train
