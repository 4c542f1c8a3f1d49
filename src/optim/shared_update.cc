#include "optim/shared_update.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "optim/state_tensors.h"

#include <lockstep/base/error.h>
#include <lockstep/layout/shard_range.h>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

namespace lockstep::optim {
namespace {

// Whose is which part of a parameter: whole blocks of the small formats.
layout::Range part_of_rank(std::int64_t elements, int ranks, int rank) {
  std::int64_t blocks = (elements + block_elements - 1) / block_elements;
  layout::Range own = layout::shard_range(blocks, ranks, rank);
  return {std::min(elements, own.begin * block_elements),
          std::min(elements, own.end * block_elements)};
}

// All of its memory in one dimension, whatever its strides are.
at::Tensor flat(const at::Tensor& dense) {
  return at::empty({0}, dense.options().requires_grad(false))
      .set_(dense.storage(), dense.storage_offset(), {dense.numel()}, {1});
}

template <class Use>
void for_each_state(const UpdateEntry& entry, const Use& use) {
  if (entry.master->defined()) use(*entry.master);
  for (const StateTensor& state : entry.state)
    for (at::Tensor* tensor : {state.values, state.scales})
      if (tensor != nullptr && tensor->defined()) use(*tensor);
}

// At most, of the state of `entries` that is not there yet.
std::int64_t bytes_to_share(const std::vector<UpdateEntry>& entries, StateFormat format,
                            const SharedState& shared) {
  constexpr std::int64_t padding = 512;  // an alignment of values, and one of scales
  std::int64_t bytes = 0;
  const auto add = [&](const at::Tensor& tensor, std::int64_t wanted) {
    if (!tensor.defined() || !shared.holds(tensor)) bytes += wanted + padding;
  };
  for (const UpdateEntry& entry : entries) {
    const std::int64_t count = entry.dense.numel();
    if (entry.has_16_bits()) add(*entry.master, 4 * count);
    for (const StateTensor& state : entry.state) {
      if (state.values == nullptr) continue;
      const auto element = static_cast<std::int64_t>(at::elementSize(dtype_of(format)));
      const bool is_small = state.scales != nullptr && format != StateFormat::float32;
      add(*state.values, is_small ? element * count + 4 * scales_of(format, count) : 4 * count);
    }
  }
  return bytes;
}

std::uint64_t fingerprint_of_entries(const std::vector<UpdateEntry>& entries) {
  std::uint64_t all = entries.size();
  for (const UpdateEntry& entry : entries)
    all = combine_fingerprints(all, fingerprint_of(entry.number, entry.dense.numel(), entry.age));
  return all;
}

}  // namespace

// Memory.

at::Tensor SharedState::zeros(std::int64_t count, at::ScalarType dtype) {
  c10::InferenceMode off(false);
  std::erase_if(blocks_, [](const Block& block) { return block.storage.expired(); });
  // The engine's own tensor may be the same object on several ranks.
  at::Tensor values = flat(group_.empty_node_shared({count}, dtype));
  if (fills()) values.zero_();
  blocks_.push_back({values.storage().getWeakStorageImpl(), values._version()});
  return values;
}

const SharedState::Block* SharedState::block_of(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  auto found = std::ranges::find_if(blocks_, [&](const Block& block) {
    return block.storage._unsafe_get_target() == storage && !block.storage.expired();
  });
  return found == blocks_.end() ? nullptr : &*found;
}

bool SharedState::is_written(const at::Tensor& tensor) const {
  const Block* block = block_of(tensor);
  return block != nullptr && block->version != tensor._version();
}

void SharedState::accept_writes(const at::Tensor& tensor) {
  for (Block& block : blocks_)
    if (&block == block_of(tensor)) block.version = tensor._version();
}

// Updates.

SharedUpdate::SharedUpdate(Group group, std::vector<at::Tensor> parameters,
                           std::function<void()> check_gradients)
    : group_(std::move(group)),
      parameters_(std::move(parameters)),
      check_gradients_(std::move(check_gradients)),
      state_(std::make_shared<SharedState>(group_)) {
  for (const at::Tensor& parameter : parameters_) known_.insert(parameter.unsafeGetTensorImpl());
}

bool SharedUpdate::divides(const UpdateEntry& entry) const {
  return entry.is_for_kernel() && entry.dense.is_same(entry.parameter) &&
         entry.dense.nbytes() >= least_bytes &&
         known_.contains(entry.parameter.unsafeGetTensorImpl());
}

bool SharedUpdate::has_room(const std::vector<UpdateEntry>& entries, StateFormat format) {
  const std::int64_t bytes = bytes_to_share(entries, format, *state_);
  if (bytes == 0) return true;
  try {
    (void)group_.empty_node_shared({bytes}, at::kByte);
    return true;
  } catch (const BadInput& error) {
    if (group_.is_root())
      log::warning("every rank keeps all of the optimizer's state, {}, and not the host once: {}",
                   format_bytes(bytes), error.what());
    return false;
  }
}

void SharedUpdate::check_not_written(const UpdateEntry& entry, const GroupStep& step) const {
  for_each_state(entry, [&](const at::Tensor& tensor) {
    check(!state_->is_written(tensor),
          "{}: the state of parameter {} of group {} was written to, or that of one beside it: "
          "the ranks share it, so each would change it again; give it other tensors, as load() "
          "does",
          step.optimizer, entry.number, step.group);
  });
}

void SharedUpdate::keep_own(const UpdateEntry& entry, const GroupStep& step) const {
  check_not_written(entry, step);
  take_from_shared(entry);
}

bool SharedUpdate::prepare(std::vector<UpdateEntry>& entries, const GroupStep& step) {
  if (entries.empty()) return true;
  check_gradients_();
  for (const UpdateEntry& entry : entries) check_not_written(entry, step);
  if (!has_room(entries, step.update.state)) {
    for (const UpdateEntry& entry : entries) give_up(entry);
    return false;
  }
  prepare_state(entries, step.update.state, state_.get());
  for (const UpdateEntry& entry : entries)
    for_each_state(entry, [&](const at::Tensor& tensor) { state_->accept_writes(tensor); });
  return true;
}

void SharedUpdate::give_up(const UpdateEntry& entry) {
  known_.erase(entry.parameter.unsafeGetTensorImpl());
  take_from_shared(entry);
}

// No rank writes there now: what one wrote in the last step it did before the others' wait ended.
void SharedUpdate::take_from_shared(const UpdateEntry& entry) const {
  for_each_state(entry, [&](at::Tensor& tensor) {
    if (state_->holds(tensor)) tensor = tensor.clone();
  });
}

void SharedUpdate::meet(const std::vector<UpdateEntry>& entries, const GroupStep& step,
                        const std::string& rule) {
  std::string tag = formatted(
      "{} updates group {}: {}, gradients times {} up to {}, {} parameters {:x}, state {}, seed {}",
      step.optimizer, step.group, rule,
      step.update.maximize ? -step.transform.factor : step.transform.factor, step.transform.limit,
      entries.size(), fingerprint_of_entries(entries), static_cast<int>(step.update.state),
      step.update.seed);
  group_.barrier({.tag = tag}).wait();
}

Work SharedUpdate::publish(const UpdateEntry& entry) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < group_.size(); ++rank)
    counts.push_back(part_of_rank(entry.dense.numel(), group_.size(), rank).length());
  at::Tensor values = flat(entry.dense);
  at::Tensor own = values.narrow(0, entry.share->begin, entry.share->length());
  return group_.all_gather(values, own, counts, {.tag = "updated parameter"});
}

void SharedUpdate::run(std::vector<UpdateEntry>& entries, const GroupStep& step,
                       const std::string& rule, const Update& update) {
  if (entries.empty()) return;
  meet(entries, step, rule);
  std::vector<Work> works;
  for (UpdateEntry& entry : entries) {
    entry.share = part_of_rank(entry.dense.numel(), group_.size(), group_.rank());
    std::vector<UpdateEntry> one = {std::move(entry)};
    update(one);
    works.push_back(publish(one.front()));
  }
  for (Work& work : works) work.wait();
}

}  // namespace lockstep::optim
