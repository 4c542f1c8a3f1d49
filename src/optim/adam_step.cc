#include "optim/adam_step.h"

#include "optim/adam_kernel.h"
#include "optim/parameter_span.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::optim {
namespace {

AdamConstants constants_of(const AdamRule& rule, const GroupStep& step, std::int64_t age) {
  auto t = static_cast<double>(age);
  double sign = step.update.maximize ? -1 : 1;
  return {.factor = static_cast<float>(sign * step.transform.factor),
          .limit = static_cast<float>(step.transform.limit),
          .decay = static_cast<float>(rule.decoupled ? 0 : rule.weight_decay),
          .decay_factor = static_cast<float>(rule.decoupled ? 1 - rule.lr * rule.weight_decay : 1),
          .beta1 = static_cast<float>(rule.beta1),
          .new1 = static_cast<float>(1 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .new2 = static_cast<float>(1 - rule.beta2),
          .unbias = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, t))),
          .eps = static_cast<float>(rule.eps),
          .step_size = static_cast<float>(rule.lr / (1 - std::pow(rule.beta1, t)))};
}

void update_plain(const AdamConstants& constants, const ParameterSpan& span, std::int64_t begin,
                  std::int64_t end) {
  for_each_tile(
      span, begin, end, [&](std::int64_t first, std::int64_t last, const float* gradient) {
        auto state = [&](int which) -> float* {
          std::byte* data = span.state[which].data;
          return data == nullptr ? nullptr : reinterpret_cast<float*>(data) + first;
        };
        update_adam(constants,
                    AdamSpan{.parameter = reinterpret_cast<float*>(span.parameter) + first,
                             .gradient = gradient,
                             .average = state(0),
                             .square = state(1),
                             .greatest_square = state(2),
                             .count = last - first});
      });
}

void update_by_tiles(const AdamConstants& constants, const ParameterSpan& span, std::int64_t begin,
                     std::int64_t end, std::uint32_t key) {
  bool small = span.state[0].format == StateFormat::bfloat16;
  auto bits = [&](int which) {
    return reinterpret_cast<std::uint16_t*>(span.state[which].data) + begin;
  };
  for (; begin < end; begin += Tile::elements) {
    std::int64_t count = std::min(Tile::elements, end - begin);
    Tile tile(span, begin, count, key, StateFormat::bfloat16);
    if (small)
      update_adam(constants,
                  SmallAdamSpan{.parameter = tile.parameter(),
                                .gradient = tile.gradient(),
                                .average = bits(0),
                                .square = bits(1),
                                .greatest_square = tile.state(2),
                                .count = count},
                  {.key = key, .first = static_cast<std::uint32_t>(span.place + begin)});
    else
      update_adam(constants, AdamSpan{.parameter = tile.parameter(),
                                      .gradient = tile.gradient(),
                                      .average = tile.state(0),
                                      .square = tile.state(1),
                                      .greatest_square = tile.state(2),
                                      .count = count});
    tile.close();
  }
}

// What one call of the kernel takes: tensors of one dtype, device and age.
struct Batch {
  std::vector<at::Tensor> parameters, gradients, averages, squares, greatest_squares, steps;
  std::int64_t age = 0;

  [[nodiscard]] bool takes(const at::Tensor& parameter, std::int64_t its_age) const {
    return parameters.front().scalar_type() == parameter.scalar_type() &&
           parameters.front().device() == parameter.device() && age == its_age;
  }
};

void add(const UpdateEntry& entry, const GroupStep& step, std::vector<Batch>& batches) {
  at::Tensor parameter = updated_tensor(entry);
  auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& candidate) {
    return candidate.takes(parameter, entry.age);
  });
  if (batch == batches.end()) {
    batch = batches.emplace(batches.end());
    batch->age = entry.age;
  }
  batch->parameters.push_back(parameter);
  batch->gradients.push_back(transformed_gradient(entry, step.transform));
  batch->averages.push_back(*entry.state[0].values);
  batch->squares.push_back(*entry.state[1].values);
  if (entry.state[2].values != nullptr) batch->greatest_squares.push_back(*entry.state[2].values);
  // The kernel only reads the step.
  auto options = at::TensorOptions(at::kFloat).device(parameter.device());
  batch->steps.push_back(batch->steps.empty()
                             ? at::scalar_tensor(static_cast<double>(entry.age), options)
                             : batch->steps.front());
}

void run_batch(const Batch& batch, const AdamRule& rule, bool maximize) {
  auto call = [&](auto kernel) {
    kernel(batch.parameters, batch.gradients, batch.averages, batch.squares, batch.greatest_squares,
           batch.steps, rule.lr, rule.beta1, rule.beta2, rule.weight_decay, rule.eps, rule.amsgrad,
           maximize);
  };
  if (rule.decoupled)
    call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

// Other devices, and float64.
void update_by_torch(std::vector<UpdateEntry>& entries, const AdamRule& rule,
                     const GroupStep& step) {
  std::vector<Batch> batches;
  for (const UpdateEntry& entry : entries)
    if (!entry.is_for_kernel()) add(entry, step, batches);
  for (const Batch& batch : batches) run_batch(batch, rule, step.update.maximize);
  for (const UpdateEntry& entry : entries)
    if (!entry.is_for_kernel()) publish_master(entry);
}

}  // namespace

void update_entries(std::vector<UpdateEntry>& entries, const AdamRule& rule,
                    const GroupStep& step) {
  std::vector<ParameterSpan> spans = make_spans(entries);
  count_bytes(spans, step);
  std::vector<AdamConstants> constants;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    bool same_age = i > 0 && spans[i].age == spans[i - 1].age;
    constants.push_back(same_age ? constants.back() : constants_of(rule, step, spans[i].age));
  }
  for_each_piece(spans, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const ParameterSpan& span = spans[i];
    if (span.is_plain()) return update_plain(constants[i], span, begin, end);
    update_by_tiles(constants[i], span, begin, end,
                    rounding_key(step.update.seed, step.group, span.age));
  });
  update_by_torch(entries, rule, step);
  copy_back(entries);
}

}  // namespace lockstep::optim
