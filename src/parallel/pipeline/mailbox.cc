#include "parallel/pipeline/mailbox.h"

#include "base/check.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

namespace lockstep::pipeline {
namespace {

// Receives beyond the one that is needed: two, so that a rank that is ahead need not wait, and
// memory is not taken for a whole step.
constexpr std::size_t ahead = 2;

// "1F3", or "2I3" for the gradient that stage 2 gives to stage 1: the tag of a message.
std::string tag_of(const plan::Result& result) {
  return plan::text_of({result.is_gradient ? plan::Compute::input : plan::Compute::forward,
                        result.stage, result.micro_batch});
}

// The stage that needs a result on another stage; none for the ends of the model.
std::optional<int> next_stage(const plan::Result& result, int stages) {
  const int next = result.is_gradient ? result.stage - 1 : result.stage + 1;
  return next < 0 || next >= stages ? std::nullopt : std::optional(next);
}

// The forward whose outputs a gradient is of.
plan::Result forward_of(const plan::Result& gradient) {
  return {false, gradient.stage - 1, gradient.micro_batch};
}

}  // namespace

Mailbox::Mailbox(Group& group, const plan::Schedule& schedule, SpecBook& book,
                 MailboxOptions options)
    : group_(group),
      book_(book),
      options_(options),
      ranks_(plan::rank_of_stages(schedule)),
      stages_(schedule.stages) {
  for (int source = 0; source < schedule.rank_count(); ++source) {
    if (source == group.rank()) continue;
    Channel channel{source, {}};
    for (const plan::Action& action : schedule.ranks[static_cast<std::size_t>(source)]) {
      if (action.compute == plan::Compute::weight) continue;
      const plan::Result result = plan::result_of(action);
      const auto next = next_stage(result, stages_);
      if (!next || rank_of(*next) != group.rank()) continue;
      places_[result.key()] = {channels_.size(), channel.messages.size()};
      channel.messages.emplace_back().result = result;
    }
    channels_.push_back(std::move(channel));
  }
}

void Mailbox::send(const plan::Result& result, const Tensors& tensors) {
  const auto next = next_stage(result, stages_);
  if (!next || rank_of(*next) == group_.rank()) return;
  drop_arrived();
  const int destination = rank_of(*next);
  const std::string tag = tag_of(result);
  if (!result.is_gradient) {
    const Specs specs = specs_of(tensors);
    if (options_.tells_specs) {
      book_[result.key()] = specs;
      sent_.push_back(group_.send(message_of(specs, tag), destination, call("sizes of " + tag)));
    } else {
      const Specs& known = book_.at(result.key());
      check(specs == known, "{}: expected the outputs of earlier steps, {}, found {}", tag,
            describe(known), describe(specs));
    }
  }
  for (const at::Tensor& tensor : tensors)
    sent_.push_back(group_.send(tensor.detach(), destination, call(tag)));
}

Tensors Mailbox::receive(const plan::Result& result) {
  const auto [at, number] = places_.at(result.key());
  Channel& channel = channels_[at];
  post(channel, number);
  Expected& expected = channel.messages[number];
  for (Work& work : expected.works) work.wait();
  expected.works.clear();
  drop_arrived();
  return std::exchange(expected.tensors, {});
}

void Mailbox::post(Channel& channel, std::size_t last) {
  while (channel.posted < channel.messages.size()) {
    Expected& next = channel.messages[channel.posted];
    const bool is_needed = channel.posted <= last;
    if (!is_needed && (channel.posted > last + ahead || !knows(next.result))) return;
    for (const TensorMeta& spec : specs_for(channel, next.result)) {
      if (next.result.is_gradient && !spec.requires_grad) continue;
      at::Tensor tensor = post(channel, next, spec);
      if (!next.result.is_gradient && spec.requires_grad) tensor.set_requires_grad(true);
      next.tensors.push_back(std::move(tensor));
    }
    ++channel.posted;
  }
}

at::Tensor Mailbox::post(const Channel& channel, Expected& message, const TensorMeta& spec) {
  const std::string tag = tag_of(message.result);
  const auto options = at::TensorOptions(spec.dtype).device(options_.device);
  at::Tensor tensor = group_.empty_shared(spec.sizes, options);
  message.works.push_back(group_.recv(tensor, channel.source, call(tag)));
  return tensor;
}

bool Mailbox::knows(const plan::Result& result) const {
  if (result.is_gradient) return book_.contains(forward_of(result).key());
  return !options_.tells_specs;
}

Specs Mailbox::specs_for(const Channel& channel, const plan::Result& result) {
  if (result.is_gradient) return book_.at(forward_of(result).key());
  if (!options_.tells_specs) return book_.at(result.key());
  const std::string tag = tag_of(result);
  at::Tensor message = at::empty({spec_numbers}, at::kLong);
  group_.recv(message, channel.source, call("sizes of " + tag)).wait();
  return book_[result.key()] = specs_in(message, tag);
}

void Mailbox::drop_arrived() {
  std::erase_if(sent_, [](Work& work) {
    if (!work.done()) return false;
    work.wait();
    return true;
  });
}

void Mailbox::finish() {
  for (Work& work : sent_) work.wait();
  sent_.clear();
}

}  // namespace lockstep::pipeline
