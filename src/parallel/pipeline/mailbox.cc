#include "parallel/pipeline/mailbox.h"

#include "base/check.h"

#include <utility>

namespace lockstep::pipeline {
namespace {

// "1F3", or "2I3" for the gradient that stage 2 gives to stage 1: the tag of a message.
std::string tag_of(const plan::Result& result) {
  return plan::text_of({result.is_gradient ? plan::Compute::input : plan::Compute::forward,
                        result.stage, result.micro_batch});
}

}  // namespace

Mailbox::Mailbox(Group& group, std::span<const plan::Action> order, const std::vector<int>& ranks,
                 const Batch& batch, SpecBook& book, MailboxOptions options)
    : group_(group), order_(order), ranks_(ranks), batch_(batch), book_(book), options_(options) {}

std::optional<int> Mailbox::destination_of(const plan::Result& result) const {
  const int next = result.is_gradient ? result.stage - 1 : result.stage + 1;
  if (next < 0 || next >= static_cast<int>(ranks_.size())) return std::nullopt;
  return rank_of(next);
}

void Mailbox::begin(const plan::Action& own) {
  for (; order_[next_] != own; ++next_) {
    const plan::Action& other = order_[next_];
    if (other.compute == plan::Compute::weight) continue;
    const plan::Result result = plan::result_of(other);
    if (destination_of(result) == group_.rank()) post_receive(result);
  }
  ++next_;
}

void Mailbox::send(const plan::Result& result, const Tensors& tensors) {
  const auto destination = destination_of(result);
  if (!destination || destination == group_.rank()) return;
  drop_arrived();
  const std::string tag = tag_of(result);
  if (!result.is_gradient) {
    const Specs specs = specs_of(tensors);
    const auto [known, is_new] = book_.emplace(place_of(result), specs);
    check(specs == known->second,
          "{}: expected the outputs of earlier micro-batches of {} rows, {}, found {}", tag,
          known->first.second, describe(known->second), describe(specs));
    if (is_new)
      sent_.push_back(group_.send(message_of(specs, tag), *destination, call("sizes of " + tag)));
  }
  for (const at::Tensor& tensor : tensors)
    sent_.push_back(group_.send(tensor.detach(), *destination, call(tag)));
}

Tensors Mailbox::receive(const plan::Result& result) {
  Expected expected = std::move(expected_.extract(result.key()).mapped());
  for (Work& work : expected.works) work.wait();
  drop_arrived();
  return std::move(expected.tensors);
}

void Mailbox::post_receive(const plan::Result& result) {
  const int source = rank_of(result.stage);
  const std::string tag = tag_of(result);
  Expected& expected = expected_[result.key()];
  for (const TensorMeta& spec : specs_for(result, source)) {
    if (result.is_gradient && !spec.requires_grad) continue;
    const auto options = at::TensorOptions(spec.dtype).device(options_.device);
    at::Tensor tensor = group_.empty_shared(spec.sizes, options);
    expected.works.push_back(group_.recv(tensor, source, call(tag)));
    if (!result.is_gradient && spec.requires_grad) tensor.set_requires_grad(true);
    expected.tensors.push_back(std::move(tensor));
  }
}

SpecBook::key_type Mailbox::place_of(const plan::Result& result) const {
  return {result.is_gradient ? result.stage - 1 : result.stage,
          batch_.rows_of(result.micro_batch).length()};
}

const Specs& Mailbox::specs_for(const plan::Result& result, int source) {
  const SpecBook::key_type place = place_of(result);
  const auto known = book_.find(place);
  if (known != book_.end()) return known->second;
  const std::string tag = tag_of(result);
  at::Tensor message = at::empty({spec_numbers}, at::kLong);
  group_.recv(message, source, call("sizes of " + tag)).wait();
  return book_[place] = specs_in(message, tag);
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
