#include <lockstep/optim/sgd.h>

#include "optim/state_tensors.h"
#include "optim/update_entry.h"
#include "optim/update_kernel.h"

#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>

namespace lockstep::optim {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

namespace {

SgdConstants constants_of(const SGDOptions& options, const GroupStep& step, bool first) {
  double sign = step.update.maximize ? -1 : 1;
  return {.factor = static_cast<float>(sign * step.transform.factor),
          .limit = static_cast<float>(step.transform.limit),
          .decay = static_cast<float>(options.weight_decay()),
          .momentum = static_cast<float>(options.momentum()),
          .undamped = static_cast<float>(1 - options.dampening()),
          .lr = static_cast<float>(options.lr()),
          .nesterov = options.nesterov(),
          .first = first};
}

void update_plain(const SgdConstants& constants, const ParameterSpan& span, std::int64_t begin,
                  std::int64_t end) {
  auto* buffer = reinterpret_cast<float*>(span.state[0].data);
  for_each_tile(
      span, begin, end, [&](std::int64_t first, std::int64_t last, const float* gradient) {
        update_sgd(constants, {.parameter = reinterpret_cast<float*>(span.parameter) + first,
                               .gradient = gradient,
                               .momentum_buffer = buffer == nullptr ? nullptr : buffer + first,
                               .count = last - first});
      });
}

void update_by_tiles(const SgdConstants& constants, const ParameterSpan& span, std::int64_t begin,
                     std::int64_t end, std::uint32_t key) {
  for (; begin < end; begin += Tile::elements) {
    std::int64_t count = std::min(Tile::elements, end - begin);
    Tile tile(span, begin, count, key);
    update_sgd(constants, {.parameter = tile.parameter(),
                           .gradient = tile.gradient(),
                           .momentum_buffer = tile.state(0),
                           .count = count});
    tile.close();
  }
}

// Updates parameters on other devices, and float64 parameters. One call per entry, because only
// some entries have a momentum buffer yet.
void update_by_torch(const UpdateEntry& entry, const SGDOptions& options, const GroupStep& step) {
  std::vector<at::Tensor> buffers;
  if (entry.state[0].values != nullptr) buffers.push_back(*entry.state[0].values);
  at::_fused_sgd_(updated_tensor(entry), transformed({widened_gradient(entry)}, step.transform),
                  buffers, options.weight_decay(), options.momentum(), options.lr(),
                  options.dampening(), options.nesterov(), step.update.maximize,
                  /*is_first_step=*/entry.first);
  publish_master(entry);
}

// Updates prepared entries. entry.state[0] is the momentum buffer, and is only used with momentum.
void update_entries(std::vector<UpdateEntry>& entries, const SGDOptions& options,
                    const GroupStep& step) {
  std::vector<ParameterSpan> spans = make_spans(entries);
  count_bytes(spans, step);
  for_each_piece(spans, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const ParameterSpan& span = spans[i];
    SgdConstants constants = constants_of(options, step, span.first);
    if (span.is_plain()) return update_plain(constants, span, begin, end);
    update_by_tiles(constants, span, begin, end,
                    rounding_key(step.update.seed, step.group, span.age));
  });
  for (const UpdateEntry& entry : entries)
    if (!entry.is_for_kernel()) update_by_torch(entry, options, step);
  copy_back(entries);
}

// As in torch::optim, a parameter gets a state only if there is something to store.
void update_group(std::vector<UpdateEntry> entries, StateMap& states, const SGDOptions& options,
                  const GroupStep& step) {
  bool buffered = options.momentum() != 0;
  std::vector<at::Tensor> no_masters(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    UpdateEntry& entry = entries[i];
    entry.master = &no_masters[i];
    if (!buffered && !entry.has_16_bits()) continue;
    auto& state = own_state<SGDState, SGDParamState>(states, entry.parameter);
    entry.master = &state.master_parameter;
    entry.age = ++state.step;
    entry.first = buffered && !state.momentum_buffer().defined();
    if (buffered)
      entry.state[0] = {&state.momentum_buffer(), &state.momentum_buffer_scale, Codes::with_sign};
  }
  check_state(entries, step);
  prepare_state(entries, step.update.state, step.update.memory.get());
  in_batches(entries, step.update.memory.get(),
             [&](std::vector<UpdateEntry>& some) { update_entries(some, options, step); });
}

}  // namespace

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, SGDOptions defaults,
         UpdateOptions update)
    : torch::optim::SGD(groups, std::move(defaults)), update_(std::move(update)) {}

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions defaults, UpdateOptions update)
    : torch::optim::SGD(std::move(parameters), std::move(defaults)), update_(std::move(update)) {}

at::Tensor SGD::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  update({});
  return loss;
}

void SGD::update(const ElementTransform& transform) {
  at::NoGradGuard no_grad;
  bytes_moved_ = 0;
  GroupStep step{
      .update = update_, .transform = transform, .optimizer = "SGD", .bytes_moved = &bytes_moved_};
  check_listed_once(parameters_of(param_groups_), step.optimizer);
  std::vector<std::vector<UpdateEntry>> all;
  for (const auto& group : param_groups_) {
    step.group = static_cast<std::int64_t>(all.size());
    all.push_back(make_entries(group.params(), step));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    step.group = static_cast<std::int64_t>(i);
    update_group(std::move(all[i]), state_,
                 static_cast<const SGDOptions&>(param_groups_[i].options()), step);
  }
}

void SGD::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<SGDState, SGDOptions>(archive, *this);
}

}  // namespace lockstep::optim
