#include "train/model.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "checkpoint/optimizer_state.h"
#include "module/checks.h"
#include "parallel/parallel_model.h"
#include "parallel/tensor/experts.h"
#include "sys/failure_text.h"
#include "train/device.h"
#include "train/strategies.h"

#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/global/tensor.h>
#include <lockstep/models/generate.h>
#include <lockstep/parallel/join.h>
#include <lockstep/plan/schedule.h>

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace lockstep::train {
namespace {

constexpr std::string_view of_hook = "hook.";

// The axes whose ranks have different rows: those of ParallelModel::data().
const std::vector<std::string> dp_axes = {"dp", "ep", "fsdp"};

constexpr double bytes_of_a_number = 4;

double numbers_of_state(const Options& options) {
  if (options.optimizer == OptimizerKind::adamw) return 2;
  return options.momentum > 0 ? 1 : 0;
}

// Formats a number of parameters: "1.24M", "40.0B".
std::string count_text(double count) {
  if (count >= 1e12) return formatted("{:.1f}T", count / 1e12);
  return count >= 1e9 ? formatted("{:.1f}B", count / 1e9) : formatted("{:.1f}M", count / 1e6);
}

}  // namespace

TrainedModel::TrainedModel(const Configuration& configuration, Group world)
    : options_(configuration.options),
      task_(configuration.task()),
      world_(std::move(world)),
      device_(device_of(options_)),
      mesh_(world_, configuration.layout.axes()),
      facts_{.dp_group = mesh_.sub_mesh(dp_axes).group(), .processes = world_.size()},
      hook_(hook_of_options(options_)) {
  facts_.random_stream = facts_.dp_group.rank();
  if (hook_) facts_.kind = "hook " + hook_->describe();
}

void TrainedModel::attach(std::shared_ptr<torch::nn::Module> module, RunLength) {
  module_ = std::move(module);
  if (options_.sync_batch_norm) sync_.emplace(module_, world_);
  handle_ = &make_handle(module_);
  optimizer_ = make_optimizer(options_, handle().named_parameters(), handle().state_memory());
}

// Offloaded parameters are in files, together with the optimizer's state.
std::int64_t TrainedModel::bytes_held() const {
  const std::int64_t kept = handle_->memory().kept();
  if (optimizer_ == nullptr || handle_->state_memory()) return kept;
  return kept + checkpoint::optimizer_state_bytes(*optimizer_, *handle_);
}

// Uses the number of local ranks from the launcher. In a later round of an elastic run, it is the
// number at the start of this process.
void TrainedModel::check_memory() const {
  if (!device_.is_cpu()) return;  // the model is not in the host's memory
  const auto local_ranks = std::min<std::int64_t>(
      facts_.processes, environment::integer("LOCAL_WORLD_SIZE", 1).value_or(1));
  train::check_memory(options_,
                      {.parameters = task_.parameters(), .activations = task_.activations()},
                      mesh_.layout(), static_cast<int>(local_ranks), sys::memory_size());
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
  how.shard.units.clear();  // they come from the plan
  if (how.shard.compute_dtype && !how.shard.reduce_dtype) how.shard.reduce_dtype = at::kFloat;
  return how;
}

void TrainedModel::check_stages(const ParallelPlan& plan) const {
  check_input(!plan.pieces.empty() && plan.loss,
              "--mesh {}: the task {} has no pieces and loss for stages (Task::parallel_plan())",
              mesh_text(options_.mesh), task_.name());
  const int each = plan::stages_per_rank(options_.pipeline);
  try {
    (void)plan::make_schedule(options_.pipeline, {.stages = mesh_.size(stages_axis) * each,
                                                  .chunks = each,
                                                  .micro_batches = options_.accumulate});
  } catch (const InvalidArgument& error) {
    throw BadInput(formatted("--pipeline {} with --accumulate {} micro-batches on --mesh {}: {}",
                             options_.pipeline, options_.accumulate, mesh_text(options_.mesh),
                             error.what()));
  }
}

void TrainedModel::compose(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh) {
  ParallelPlan plan = task_.parallel_plan();
  ParallelOptions how = parallel_options();
  if (options_.activation_checkpoint_every > 0) {
    how.activation_checkpointing = {plan.blocks.front()};
    how.activations = {.every = options_.activation_checkpoint_every,
                       .offload = options_.activation_offload};
  }
  if (has_stages()) check_stages(plan);
  cast_stages(plan);
  loss_ = plan.loss;
  const bool counts_tokens = !tensor_parallel::mixtures_of(*module).empty();
  if (counts_tokens) check_mixtures(options_, task_, mesh_.layout());
  try {
    model_ = parallelize(module, mesh, std::move(plan), std::move(how));
  } catch (const InvalidArgument& error) {
    if (options_.mesh.empty()) throw;
    throw BadInput(formatted("--mesh {}: {}", mesh_text(options_.mesh), error.what()));
  }
  facts_.in_step = level_of(options_) || facts_.dp_group.size() < world_.size() ||
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

// Gradients are averaged over ranks. If ranks have different numbers of rows, each rank is weighted
// by its number of rows.
at::Tensor TrainedModel::backward(const StepRows& rows, optim::GradScaler& scaler) {
  if (has_stages()) return backward_stages(rows.batch, scaler);
  if (rows.of_all.empty()) return backward_parts(rows.batch, 1, scaler);
  const std::int64_t own = rows.of_all[static_cast<std::size_t>(world_.rank())];
  const double of_rank = static_cast<double>(own) * static_cast<double>(rows.of_all.size()) /
                         static_cast<double>(std::reduce(rows.of_all.begin(), rows.of_all.end()));
  if (std::ranges::count(rows.of_all, 0) == 0) return backward_parts(rows.batch, of_rank, scaler);
  // Ranks without rows shadow the collectives of the other ranks.
  std::vector<Joinable*> joinables{&handle().joinable()};
  if (sync_) joinables.push_back(&sync_->joinable());
  Join others(std::move(joinables));
  at::Tensor loss = at::zeros({}, at::kDouble);
  if (own > 0)
    loss = backward_parts(rows.batch, of_rank, scaler);
  else
    (void)scaler.current_scale();  // the other ranks' losses, and so all gradients, are scaled
  others.finish(nullptr);          // the update starts after all ranks have arrived here
  return loss;
}

// All micro-batches except the last one run in no_sync().
at::Tensor TrainedModel::backward_parts(const Batch& batch, double of_rank,
                                        optim::GradScaler& scaler) {
  const auto rows = static_cast<double>(batch.data.size(0));
  const std::vector<Batch> all = micro_batches(batch, options_.accumulate);
  at::Tensor sum;
  for (const Batch& part : all) {
    std::optional<NoSync> accumulating;
    if (&part != &all.back()) accumulating.emplace(handle().no_sync());
    const double share = static_cast<double>(part.data.size(0)) / rows;
    const at::Tensor loss = backward_part(part, share * of_rank, scaler);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum / of_rank;
}

void TrainedModel::cast_stages(ParallelPlan& plan) const {
  if (!has_stages() || !autocast_dtype(options_)) return;
  for (ModelPiece& piece : plan.pieces)
    piece.forward = [this, forward = piece.forward](const Tensors& inputs) {
      const Autocast scope = autocast();
      return forward(inputs);
    };
  plan.loss = [this, loss = plan.loss](const Tensors& outputs, const Tensors& targets) {
    const Autocast scope = autocast();
    return loss(outputs, targets);
  };
}

// The last batch of an epoch may have fewer rows than micro-batches, on all ranks alike.
at::Tensor TrainedModel::backward_stages(const Batch& whole, const optim::GradScaler& scaler) {
  const bool has_rows = whole.data.defined() && whole.data.dim() > 0 && whole.data.size(0) > 0;
  ParallelModelParts::of(model_).micro_batches = static_cast<int>(
      std::min<std::int64_t>(options_.accumulate, has_rows ? whole.data.size(0) : 1));
  const double scale = scaler.enabled() ? scaler.state().scale : 1;
  const PipelineLoss scaled = [&](const Tensors& outputs, const Tensors& targets) {
    at::Tensor loss = loss_(outputs, targets);
    if (options_.sharding.compute_dtype) loss = loss.to(at::kFloat);
    return scale == 1 ? loss : loss * scale;
  };
  const Batch batch = cast_batch(whole, batch_dtype(options_));
  return model_.step({batch.data}, {batch.target}, scaled).detach().to(at::kDouble) / scale;
}

at::Tensor TrainedModel::backward_part(const Batch& part, double share, optim::GradScaler& scaler) {
  at::Tensor value;
  count_bytes([&] {
    at::Tensor loss = [&] {
      RECORD_USER_SCOPE("forward");
      const Autocast scope = autocast();
      return task_.loss(cut(cast_batch(part, batch_dtype(options_))));
    }();
    if (options_.sharding.compute_dtype)
      loss = loss.to(at::kFloat);  // float16 would overflow with the scale
    {
      RECORD_USER_SCOPE("backward");
      scaler.scale(share == 1 ? loss : loss * share).backward();
    }
    value = loss.detach().to(at::kDouble) * share;
  });
  return value;
}

void TrainedModel::update(double lr, const optim::GradientTransform& transform,
                          optim::GradScaler& scaler) {
  set_learning_rate(*optimizer_, lr);
  count_bytes([&] { scaler.step(*optimizer_, transform); });
  scaler.update();
  if (options_.sharding.reduce_in_step)
    handle().zero_grad();  // otherwise an evaluation would average gradients for all ranks
}

// evaluate() weights rows equally, while totals use Task::weight_of(). The last stage computes
// losses in the order of the micro-batches.
Totals TrainedModel::measure(const Batch& batch) {
  if (!has_stages()) {
    const Autocast scope = autocast();
    return task_.measure(cut(batch));
  }
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

// Returns the logits of the next token for one row: the last stage sends only these to the other
// ranks.
at::Tensor TrainedModel::next_logits(const at::Tensor& seen) {
  at::Tensor logits;
  const PipelineLoss keep = [&](const Tensors& outputs, const Tensors& /*targets*/) {
    const at::Tensor whole = is_global(outputs[0]) ? full_tensor(outputs[0]) : outputs[0];
    logits = whole.select(1, -1).to(at::kDouble).contiguous();
    return at::zeros({});
  };
  (void)model_.evaluate({seen}, {seen}, keep);
  Group stages = mesh_[stages_axis];
  const std::int64_t size = std::ranges::max(modules::numbers_of_all(
      stages, {logits.defined() ? logits.size(1) : 0}, {.tag = "tokens of a sample"}));
  if (!logits.defined()) logits = at::zeros({1, size}, seen.options().dtype(at::kDouble));
  stages.all_reduce(logits, Op::sum, {.tag = "logits of a sample"}).wait();
  return logits;
}

std::string TrainedModel::sample(std::int64_t length) {
  if (!has_stages()) {
    const Autocast scope = autocast();
    return task_.sample(length);
  }
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
  options.per_rank = own();
  if (saver != nullptr)
    saver->save(out, handle(), saved_optimizer(), state, options);
  else
    checkpoint::save(out, handle(), saved_optimizer(), state, options);
}

// The folder was verified when it was chosen.
void TrainedModel::load(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> own;
  const checkpoint::TrainingState state =
      checkpoint::load(folder, handle(), *optimizer_, {.verify = false, .per_rank = &own});
  begin_at(state.step);
  const auto kind_before = state.progress.find(kind_entry);
  const bool is_same_kind =
      kind_before != state.progress.end() && kind_before->second == facts_.kind;
  if (!is_same_kind || state.ranks != facts_.processes) return;
  run_on_all_or_fail(world_, [&] { in_file(folder, [&] { take_own(own); }); });
}

// Traffic in groups of several axes is not counted, nor is that of fully_shard() and --elastic.
std::vector<std::pair<std::string, std::string>> TrainedModel::results() {
  if (world_.size() == 1 || facts_.in_step || options_.elastic) return {};
  return {{"sent_bytes", formatted("{}", sent_bytes_)}};
}

std::vector<Batch> micro_batches(const Batch& batch, std::int64_t parts) {
  check(batch.data.defined() && batch.data.dim() > 0,
        "Task::batch: expected rows, found a tensor without a dim");
  std::vector<at::Tensor> data = batch.data.chunk(parts);
  std::vector<Batch> cut(data.size());
  auto hand_out = [&](const at::Tensor& whole, auto&& place) {
    check(whole.defined() && whole.dim() > 0 && whole.size(0) == batch.data.size(0),
          "Task::batch: expected {} rows in each tensor, as in data", batch.data.size(0));
    std::vector<at::Tensor> rows = whole.chunk(parts);
    for (std::size_t part = 0; part < cut.size(); ++part) place(cut[part], rows[part]);
  };
  hand_out(batch.data, [](Batch& to, at::Tensor& rows) { to.data = rows; });
  hand_out(batch.target, [](Batch& to, at::Tensor& rows) { to.target = rows; });
  for (const at::Tensor& more : batch.more)
    hand_out(more, [](Batch& to, at::Tensor& rows) { to.more.push_back(rows); });
  return cut;
}

std::optional<c10::ScalarType> batch_dtype(const Options& options) {
  return level_of(options) ? options.sharding.compute_dtype : std::nullopt;
}

std::optional<c10::ScalarType> autocast_dtype(const Options& options) {
  return level_of(options) ? std::nullopt : options.sharding.compute_dtype;
}

Batch cast_batch(Batch batch, std::optional<c10::ScalarType> dtype) {
  if (!dtype) return batch;
  auto cast = [&](at::Tensor& tensor) {
    if (tensor.is_floating_point()) tensor = tensor.to(*dtype);
  };
  cast(batch.data);
  for (at::Tensor& tensor : batch.more) cast(tensor);
  return batch;
}

// Uses the byte counts of ShardLevel. If the computation uses 16 bits, a whole 16-bit model exists
// besides the float32 shards.
double bytes_of_a_rank(const Options& options, double parameters, const MeshLayout& axes) {
  const double state = bytes_of_a_number * numbers_of_state(options);
  const bool is_narrow = batch_dtype(options).has_value();
  const double number = is_narrow ? 2 : bytes_of_a_number;
  double whole = 0;                                     // replicated on each rank
  double divided = bytes_of_a_number + number + state;  // sharded: parameters, gradients, state
  const std::optional<ShardLevel> level = level_of(options);
  if (!level) {
    whole = divided;
    divided = 0;
  } else if (*level != ShardLevel::full && options.sharding.storage != ShardStorage::node_shared) {
    whole = number;
    if (!is_narrow) divided -= number;
    if (*level == ShardLevel::optimizer) {
      whole += number;
      divided -= number;
    }
  }
  const int parts = axes.size(stages_axis) * axes.size(tensor_axis) * axes.size(experts_axis);
  return parameters * (whole + divided / axes.size(shards_axis)) / parts;
}

void check_memory(const Options& options, const ModelSize& model, const MeshLayout& axes,
                  int local_ranks, const sys::MemorySize& memory) {
  if (!options.sharding.offload.empty()) return;
  double kept = bytes_of_a_rank(options, model.parameters, axes);
  double passing = bytes_of_a_number * model.activations /
                   (axes.size(context_axis) * axes.size(tensor_axis) * axes.size(stages_axis));
  if (options.sharding.compute_dtype) passing /= 2;
  // One of so many blocks is recomputed, so it keeps nothing.
  if (const auto every = static_cast<double>(options.activation_checkpoint_every); every > 0)
    passing *= 1 - 1 / every;
  if ((kept + passing) * local_ranks <= static_cast<double>(memory.available)) return;
  std::string text = formatted(
      "the model does not fit: {} parameters, their gradients and the state of {} take at least "
      "{}, the activations of a step {}",
      count_text(model.parameters), word_of(options.optimizer), sys::rough_size(kept),
      sys::rough_size(passing));
  if (local_ranks > 1) text += formatted(" in each of {} ranks on this machine", local_ranks);
  text += formatted("; {}; choose a smaller --width, --layers or --batch",
                    sys::free_memory_text(memory));
  if (!level_of(options) && axes.ranks() > 1) text += ", or divide the model by --shard full";
  throw BadInput(text);
}

}  // namespace lockstep::train
