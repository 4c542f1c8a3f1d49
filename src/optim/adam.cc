#include "optim/state_tensors.h"
#include "optim/update_entry.h"
#include "optim/update_kernel.h"

#include <lockstep/optim/adamw.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

// True if weight decay is decoupled, as in AdamW.
template <class Options>
constexpr bool is_adamw = std::is_same_v<Options, torch::optim::AdamWOptions>;

template <class Options>
AdamConstants constants_of(const Options& options, const GroupStep& step, std::int64_t age) {
  auto [beta1, beta2] = options.betas();
  double decay = options.weight_decay();
  auto t = static_cast<double>(age);
  double sign = step.update.maximize ? -1 : 1;
  return {.factor = static_cast<float>(sign * step.transform.factor),
          .limit = static_cast<float>(step.transform.limit),
          .decay = static_cast<float>(is_adamw<Options> ? 0 : decay),
          .decay_factor = static_cast<float>(is_adamw<Options> ? 1 - options.lr() * decay : 1),
          .beta1 = static_cast<float>(beta1),
          .new1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .new2 = static_cast<float>(1 - beta2),
          .unbias = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
          .eps = static_cast<float>(options.eps()),
          .step_size = static_cast<float>(options.lr() / (1 - std::pow(beta1, t)))};
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

// Widened and transformed gradients are copies, so a kernel call has few of them.
constexpr std::int64_t most_batch_elements = std::int64_t{1} << 24;

// Parameters of one kernel call, with the same dtype, device and number of updates.
struct Batch {
  std::vector<const UpdateEntry*> entries;
  std::int64_t elements = 0;

  [[nodiscard]] bool takes(const UpdateEntry& entry) const {
    const UpdateEntry& first = *entries.front();
    return elements < most_batch_elements && first.age == entry.age &&
           first.dense.scalar_type() == entry.dense.scalar_type() &&
           first.dense.device() == entry.dense.device();
  }
};

void add(const UpdateEntry& entry, std::vector<Batch>& batches) {
  auto batch = std::ranges::find_if(batches, [&](const Batch& one) { return one.takes(entry); });
  if (batch == batches.end()) batch = batches.emplace(batches.end());
  batch->entries.push_back(&entry);
  batch->elements += entry.dense.numel();
}

template <class Options>
void run_batch(const Batch& batch, const Options& options, const GroupStep& step) {
  std::vector<at::Tensor> parameters, gradients, averages, squares, greatest_squares;
  for (const UpdateEntry* entry : batch.entries) {
    parameters.push_back(updated_tensor(*entry));
    gradients.push_back(widened_gradient(*entry));
    averages.push_back(*entry->state[0].values);
    squares.push_back(*entry->state[1].values);
    if (entry->state[2].values != nullptr) greatest_squares.push_back(*entry->state[2].values);
  }
  gradients = transformed(std::move(gradients), step.transform);
  // The kernel only reads the step.
  const at::Tensor age = at::scalar_tensor(
      batch.entries.front()->age, at::dtype(at::kFloat).device(parameters.front().device()));
  const std::vector<at::Tensor> ages(parameters.size(), age);
  auto [beta1, beta2] = options.betas();
  auto call = [&](auto kernel) {
    kernel(parameters, gradients, averages, squares, greatest_squares, ages, options.lr(), beta1,
           beta2, options.weight_decay(), options.eps(), options.amsgrad(), step.update.maximize);
  };
  if constexpr (is_adamw<Options>)
    call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

// Updates parameters on other devices, and float64 parameters.
template <class Options>
void update_by_torch(std::vector<UpdateEntry>& entries, const Options& options,
                     const GroupStep& step) {
  std::vector<Batch> batches;
  for (const UpdateEntry& entry : entries)
    if (!entry.is_for_kernel()) add(entry, batches);
  for (const Batch& batch : batches) run_batch(batch, options, step);
  for (const UpdateEntry& entry : entries)
    if (!entry.is_for_kernel()) publish_master(entry);
}

// Updates prepared entries; entry.age is the number of this update.
template <class Options>
void update_entries(std::vector<UpdateEntry>& entries, const Options& options,
                    const GroupStep& step) {
  std::vector<ParameterSpan> spans = make_spans(entries);
  count_bytes(spans, step);
  std::vector<AdamConstants> constants;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    bool same_age = i > 0 && spans[i].age == spans[i - 1].age;
    constants.push_back(same_age ? constants.back() : constants_of(options, step, spans[i].age));
  }
  for_each_piece(spans, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const ParameterSpan& span = spans[i];
    if (span.is_plain()) return update_plain(constants[i], span, begin, end);
    update_by_tiles(constants[i], span, begin, end,
                    rounding_key(step.update.seed, step.group, span.age));
  });
  update_by_torch(entries, options, step);
  copy_back(entries);
}

// torch::optim's state class of a parameter, and ours.
template <class Options>
using TorchStateOf = std::conditional_t<is_adamw<Options>, torch::optim::AdamWParamState,
                                        torch::optim::AdamParamState>;
template <class Options>
using StateOf = AdamStateOf<TorchStateOf<Options>>;

// Steps a whole optimizer. `Options` is the type of the groups' options.
template <class Options>
void step_adam(std::vector<torch::optim::OptimizerParamGroup>& groups, StateMap& states,
               GroupStep step) {
  using State = StateOf<Options>;
  at::NoGradGuard no_grad;
  check_listed_once(parameters_of(groups), step.optimizer);
  std::vector<std::vector<UpdateEntry>> all;
  for (const auto& group : groups) {
    step.group = static_cast<std::int64_t>(all.size());
    all.push_back(make_entries(group.params(), step));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& options = static_cast<const Options&>(groups[i].options());
    std::vector<State*> own;
    for (UpdateEntry& entry : all[i]) {
      auto& state = own_state<State, TorchStateOf<Options>>(states, entry.parameter);
      own.push_back(&state);
      entry.master = &state.master_parameter;
      entry.state[0] = {&state.exp_avg(), &state.exp_avg_scale, Codes::with_sign};
      entry.state[1] = {&state.exp_avg_sq(), &state.exp_avg_sq_scale, Codes::without_sign};
      if (options.amsgrad()) entry.state[2] = {&state.max_exp_avg_sq()};
    }
    if (own.empty()) continue;
    step.group = static_cast<std::int64_t>(i);
    for (std::size_t j = 0; j < own.size(); ++j) all[i][j].age = own[j]->step() + 1;
    check_state(all[i], step);
    prepare_state(all[i], step.update.state, step.update.memory.get());
    for (State* state : own) state->step(state->step() + 1);
    in_batches(all[i], step.update.memory.get(),
               [&](std::vector<UpdateEntry>& some) { update_entries(some, options, step); });
  }
}

}  // namespace

template <class Torch, class Options>
AdamOf<Torch, Options>::AdamOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               Options defaults, UpdateOptions update)
    : Torch(groups, std::move(defaults)), update_(std::move(update)) {}

template <class Torch, class Options>
AdamOf<Torch, Options>::AdamOf(std::vector<at::Tensor> parameters, Options defaults,
                               UpdateOptions update)
    : Torch(std::move(parameters), std::move(defaults)), update_(std::move(update)) {}

template <class Torch, class Options>
at::Tensor AdamOf<Torch, Options>::step(torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

template <class Torch, class Options>
void AdamOf<Torch, Options>::update(const ElementTransform& transform) {
  this->bytes_moved_ = 0;
  step_adam<Options>(this->param_groups_, this->state_,
                     {.update = update_,
                      .transform = transform,
                      .optimizer = is_adamw<Options> ? "AdamW" : "Adam",
                      .bytes_moved = &this->bytes_moved_});
}

template <class Torch, class Options>
void AdamOf<Torch, Options>::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<StateOf<Options>, Options>(archive, *this);
}

template class AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;
template class AdamOf<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep::optim
