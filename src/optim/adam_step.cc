#include "optim/adam_step.h"

#include "optim/adam_kernel.h"
#include "optim/adam_torch.h"
#include "optim/run.h"

#include <algorithm>
#include <cmath>

namespace lockstep::optim {
namespace {

AdamConstants constants_of(const AdamRule& rule, const GroupStep& step, std::int64_t age) {
  auto t = static_cast<double>(age);
  double sign = step.update.maximize ? -1 : 1;
  return {.factor = static_cast<float>(sign * step.treatment.factor),
          .limit = static_cast<float>(step.treatment.limit),
          .decay = static_cast<float>(rule.decoupled ? 0 : rule.weight_decay),
          .kept = static_cast<float>(rule.decoupled ? 1 - rule.lr * rule.weight_decay : 1),
          .beta1 = static_cast<float>(rule.beta1),
          .new1 = static_cast<float>(1 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .new2 = static_cast<float>(1 - rule.beta2),
          .unbias = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, t))),
          .eps = static_cast<float>(rule.eps),
          .step_size = static_cast<float>(rule.lr / (1 - std::pow(rule.beta1, t)))};
}

void update_plain(const AdamConstants& constants, const Run& run, std::int64_t begin,
                  std::int64_t end) {
  for_each_part(run, begin, end, [&](std::int64_t first, std::int64_t last, const float* gradient) {
    auto kept = [&](int which) -> float* {
      std::byte* data = run.kept[which].data;
      return data == nullptr ? nullptr : reinterpret_cast<float*>(data) + first;
    };
    update_adam(constants, AdamSpan{.parameter = reinterpret_cast<float*>(run.parameter) + first,
                                    .gradient = gradient,
                                    .average = kept(0),
                                    .square = kept(1),
                                    .greatest_square = kept(2),
                                    .count = last - first});
  });
}

void update_by_tiles(const AdamConstants& constants, const Run& run, std::int64_t begin,
                     std::int64_t end, std::uint32_t key) {
  bool small = run.kept[0].format == StateFormat::bfloat16;
  auto bits = [&](int which) {
    return reinterpret_cast<std::uint16_t*>(run.kept[which].data) + begin;
  };
  for (; begin < end; begin += Tile::elements) {
    std::int64_t count = std::min(Tile::elements, end - begin);
    Tile tile(run, begin, count, key, StateFormat::bfloat16);
    if (small)
      update_adam(constants,
                  SmallAdamSpan{.parameter = tile.parameter(),
                                .gradient = tile.gradient(),
                                .average = bits(0),
                                .square = bits(1),
                                .greatest_square = tile.kept(2),
                                .count = count},
                  {.key = key, .first = static_cast<std::uint32_t>(run.place + begin)});
    else
      update_adam(constants, AdamSpan{.parameter = tile.parameter(),
                                      .gradient = tile.gradient(),
                                      .average = tile.kept(0),
                                      .square = tile.kept(1),
                                      .greatest_square = tile.kept(2),
                                      .count = count});
    tile.close();
  }
}

}  // namespace

void update_slots(std::vector<Slot>& slots, const AdamRule& rule, const GroupStep& step) {
  std::vector<Run> runs = make_runs(slots);
  count_bytes(runs, step);
  std::vector<AdamConstants> constants;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    bool same_age = i > 0 && runs[i].age == runs[i - 1].age;
    constants.push_back(same_age ? constants.back() : constants_of(rule, step, runs[i].age));
  }
  for_each_piece(runs, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const Run& run = runs[i];
    if (run.is_plain()) return update_plain(constants[i], run, begin, end);
    update_by_tiles(constants[i], run, begin, end, dice_key(step.update.seed, step.group, run.age));
  });
  update_by_torch(slots, rule, step);
  copy_back(slots);
}

}  // namespace lockstep::optim
