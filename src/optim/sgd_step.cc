#include "optim/sgd_step.h"

#include "optim/run.h"
#include "optim/sgd_kernel.h"
#include "optim/torch_gradient.h"

#include <ATen/ops/_fused_sgd.h>

#include <algorithm>

namespace lockstep::optim {
namespace {

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
  for_each_part(run, begin, end, [&](std::int64_t first, std::int64_t last, const float* gradient) {
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

}  // namespace

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

}  // namespace lockstep::optim
