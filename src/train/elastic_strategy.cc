#include "train/elastic_strategy.h"

#include "train/micro_batches.h"
#include "train/random_streams.h"
#include "train/strategy.h"

#include <ATen/core/grad_mode.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

namespace lockstep::train {
namespace {

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

void copy_into(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  at::NoGradGuard no_gradients;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

// Whether all slots have equally many rows; then the mean over slots is that over rows, without a
// factor, which would be rounded.
bool are_equal(const std::vector<Batch>& parts, std::int64_t slots) {
  return std::ssize(parts) == slots && std::ranges::all_of(parts, [&](const Batch& part) {
           return part.data.size(0) == parts.front().data.size(0);
         });
}

Mesh mesh_of(const Options& options, const Group& world) {
  std::vector<MeshAxis> axes = division_of(options, world.size()).axes;
  const bool is_divided = level_of(options).has_value();
  if (axes.empty()) axes = {{std::string(is_divided ? shards_axis : copies_axis), world.size()}};
  return {world, std::move(axes)};
}

}  // namespace

ElasticStrategy::ElasticStrategy(const Options& options, Task& task, Group world)
    : LocalStrategy(options, task, std::move(world)),
      mesh_(mesh_of(options, world_)),
      learners_(learners_of(mesh_, options).group()) {}

// What goes over the groups of axes is not counted.
std::vector<std::pair<std::string, std::string>> ElasticStrategy::results() {
  if (!options_.mesh.empty()) return {};
  return LocalStrategy::results();
}

void ElasticStrategy::make_handle(std::shared_ptr<torch::nn::Module> module) {
  handle_ = make_handle_on(options_, task_,
                           {.model = *module,
                            .stage = module,
                            .divided =
                                [&](const auto& parts, const Handle& of_parts) {
                                  slots_.emplace(options_.slots, *parts, of_parts);
                                }},
                           mesh_);
  if (!is_divided()) slots_.emplace(learners_, options_.slots, handle_.parameters());
  for (const NamedPart& part : handle_.state_parts())
    if (part.kind == PartKind::buffer) buffers_.push_back(part.tensor);
}

// Each slot begins with the buffers of the step's begin, and those that slot 0 leaves count for the
// next step: otherwise statistics of batches would depend on which rank has seen how many slots.
void ElasticStrategy::begin_buffers() {
  before_ = copies_of(buffers_);
  after_.clear();
}

void ElasticStrategy::end_buffers() {
  if (buffers_.empty()) return;
  if (learners_.is_root()) copy_into(buffers_, after_);
  for (const at::Tensor& buffer : buffers_)
    learners_.broadcast(buffer, 0, {.tag = "buffers"}).wait();
}

double ElasticStrategy::backward_slot(const Batch& rows, double share, std::int64_t step,
                                      std::int64_t slot, optim::GradScaler& scaler) {
  copy_into(buffers_, before_);
  const auto of_step = static_cast<std::int64_t>(stream_seed(options_.seed, step));
  torch::manual_seed(stream_seed(of_step, seed_stream_of_rank(static_cast<int>(slot))));
  const double loss = backward(rows, share, scaler);
  if (slot == 0) after_ = copies_of(buffers_);
  return loss;
}

// Ranks that divide the model pass through it equally often: this time without a slot.
void ElasticStrategy::pass_for_others(const Batch& rows, optim::GradScaler& scaler) {
  copy_into(buffers_, before_);
  static_cast<void>(backward(rows, 1, scaler));
  slots_->drop();
}

double ElasticStrategy::backward_slots(const Batch& batch, std::int64_t step,
                                       optim::GradScaler& scaler) {
  const std::int64_t slots = options_.slots;
  const std::vector<Batch> parts = micro_batches(batch, slots);
  const bool is_mean = are_equal(parts, slots);
  const auto rows = static_cast<double>(batch.data.size(0));
  slots_->reset();
  begin_buffers();
  std::vector<double> losses;
  const std::int64_t passes = is_divided() ? slots_->most() : slots_->end() - slots_->begin();
  std::optional<NoSync> alone = handle().no_sync();
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t slot = slots_->begin() + pass;
    const bool is_own = slot < slots_->end();
    double loss = 0;
    if (is_own && slot < std::ssize(parts)) {
      const Batch& part = parts[static_cast<std::size_t>(slot)];
      const double share = is_mean ? 1 : static_cast<double>(part.data.size(0)) / rows;
      loss = backward_slot(part, share, step, slot, scaler);
    } else if (is_divided()) {
      pass_for_others(parts.front(), scaler);
    }
    if (!is_own) continue;
    slots_->take(slot);
    losses.push_back(loss);
  }
  alone.reset();
  const double divisor = is_mean ? static_cast<double>(slots) : 1;
  slots_->reduce(divisor);
  end_buffers();
  return tree_sum(slots_->gather(losses)) / divisor;
}

}  // namespace lockstep::train
