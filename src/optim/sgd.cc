#include <lockstep/optim/sgd.h>

#include "optim/kept.h"
#include "optim/optimizers.h"
#include "optim/run.h"
#include "optim/sgd_kernel.h"
#include "optim/slot.h"

#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>

namespace lockstep::optim {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

namespace {

struct SgdRule {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};

SgdConstants constants_of(const SgdRule& rule, const GroupStep& step, bool first) {
  double sign = step.update.maximize ? -1 : 1;
  return {.factor = static_cast<float>(sign * step.treatment.factor),
          .limit = static_cast<float>(step.treatment.limit),
          .decay = static_cast<float>(rule.weight_decay),
          .momentum = static_cast<float>(rule.momentum),
          .undamped = static_cast<float>(1 - rule.dampening),
          .lr = static_cast<float>(rule.lr),
          .nesterov = rule.nesterov,
          .first = first};
}

void update_plain(const SgdConstants& constants, const Run& run, std::int64_t begin,
                  std::int64_t end) {
  auto* buffer = reinterpret_cast<float*>(run.kept[0].data);
  for_each_tile(run, begin, end, [&](std::int64_t first, std::int64_t last, const float* gradient) {
    update_sgd(constants, {.parameter = reinterpret_cast<float*>(run.parameter) + first,
                           .gradient = gradient,
                           .momentum_buffer = buffer == nullptr ? nullptr : buffer + first,
                           .count = last - first});
  });
}

void update_by_tiles(const SgdConstants& constants, const Run& run, std::int64_t begin,
                     std::int64_t end, std::uint32_t key) {
  for (; begin < end; begin += Tile::elements) {
    std::int64_t count = std::min(Tile::elements, end - begin);
    Tile tile(run, begin, count, key);
    update_sgd(constants, {.parameter = tile.parameter(),
                           .gradient = tile.gradient(),
                           .momentum_buffer = tile.kept(0),
                           .count = count});
    tile.close();
  }
}

// Other devices, and float64: one by one, since each may or may not have its first buffer.
void update_by_torch(const Slot& slot, const SgdRule& rule, const GroupStep& step) {
  std::vector<at::Tensor> buffers;
  if (slot.kept[0].values != nullptr) buffers.push_back(*slot.kept[0].values);
  at::_fused_sgd_(updated_tensor(slot), treated_gradient(slot, step.treatment), buffers,
                  rule.weight_decay, rule.momentum, rule.lr, rule.dampening, rule.nesterov,
                  step.update.maximize, /*is_first_step=*/slot.first);
  publish_master(slot);
}

// Slots are prepared; slot.kept[0] is the momentum buffer, in use with momentum only.
void update_slots(std::vector<Slot>& slots, const SgdRule& rule, const GroupStep& step) {
  std::vector<Run> runs = make_runs(slots);
  count_bytes(runs, step);
  for_each_piece(runs, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const Run& run = runs[i];
    SgdConstants constants = constants_of(rule, step, run.first);
    if (run.is_plain()) return update_plain(constants, run, begin, end);
    update_by_tiles(constants, run, begin, end, dice_key(step.update.seed, step.group, run.age));
  });
  for (const Slot& slot : slots)
    if (!slot.is_for_kernel()) update_by_torch(slot, rule, step);
  copy_back(slots);
}

// A parameter has a state only where there is something to keep, as in torch::optim.
void update_group(std::vector<Slot>& slots, StateMap& states, const SGDOptions& options,
                  const GroupStep& step) {
  bool buffered = options.momentum() != 0;
  std::vector<at::Tensor> no_masters(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    slot.master = &no_masters[i];
    if (!buffered && !slot.has_16_bits()) continue;
    auto& state = own_state<SGDState, SGDParamState>(states, slot.parameter);
    slot.master = &state.master_parameter;
    slot.age = ++state.step;
    slot.first = buffered && !state.momentum_buffer().defined();
    if (buffered)
      slot.kept[0] = {&state.momentum_buffer(), &state.momentum_buffer_scale, Codes::with_sign};
  }
  prepare_kept(slots, step.update.state, step.update.memory.get());
  SgdRule rule{.lr = options.lr(),
               .momentum = options.momentum(),
               .dampening = options.dampening(),
               .weight_decay = options.weight_decay(),
               .nesterov = options.nesterov()};
  in_batches(slots, step.update.memory.get(),
             [&](std::vector<Slot>& some) { update_slots(some, rule, step); });
}

}  // namespace

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, SGDOptions defaults,
         UpdateOptions update)
    : torch::optim::SGD(groups, std::move(defaults)), update_(update) {}

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions defaults, UpdateOptions update)
    : torch::optim::SGD(std::move(parameters), std::move(defaults)), update_(update) {}

at::Tensor SGD::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

void SGD::update(const ElementTreatment& treatment) {
  at::NoGradGuard no_grad;
  bytes_moved_ = 0;
  GroupStep step{
      .update = update_, .treatment = treatment, .optimizer = "SGD", .bytes_moved = &bytes_moved_};
  std::vector<std::vector<Slot>> all;
  for (const auto& group : param_groups_) {
    step.group = static_cast<std::int64_t>(all.size());
    all.push_back(make_slots(group.params(), step));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    step.group = static_cast<std::int64_t>(i);
    update_group(all[i], state_, static_cast<const SGDOptions&>(param_groups_[i].options()), step);
  }
}

void SGD::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<SGDState, SGDOptions>(archive, *this);
}

std::vector<at::Tensor> SGD::treated_parameters() const { return parameters_of(param_groups_); }

}  // namespace lockstep::optim
