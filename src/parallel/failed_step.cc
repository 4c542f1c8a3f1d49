// The errors and notices of a backward() that failed (backward_step.h).
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "parallel/backward_step.h"

#include <lockstep/parallel/handle.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

namespace lockstep::parallel {
namespace {

constexpr std::size_t most_named = 8;

}  // namespace

void throw_sparse_gradient(const std::string& parameter, std::string_view strategy) {
  throw ReductionFailed(formatted(
      "the gradient of {} is sparse; {} averages dense ones: make the Embedding without "
      "sparse(true), or train the table in a parameter server, which takes sparse gradients "
      "(by_rows)",
      parameter, strategy));
}

void throw_second_gradient(const std::string& parameter) {
  throw ReductionFailed(formatted(
      "{} got a second gradient in one backward(), after the first was on its way: a nested "
      "backward() uses it again, or two threads run backward() at once",
      parameter));
}

void throw_failed_backward(int failed_ranks, int group_size, const std::string& ranks) {
  throw ReductionFailed(formatted(
      "backward() ended with an exception on {} of {} ranks: {}; gradients are undefined on all",
      failed_ranks, group_size, ranks));
}

void throw_missing_gradients(const std::string& parameters, std::string_view strategy) {
  throw ReductionFailed(formatted(
      "backward() gave no gradient for {}: they had no part in the loss; use them, freeze "
      "them before {}, or set find_unused_parameters",
      parameters, strategy));
}

void throw_changed_graph(const std::string& parameter, std::string_view what) {
  throw ReductionFailed(
      formatted("static_graph: {} {} in the first step; take find_unused_parameters for a module "
                "that uses others from step to step",
                parameter, what));
}

void throw_hook_result(const std::string& hook, const std::string& bucket,
                       const at::Tensor& expected, const at::Tensor& found) {
  auto text = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return std::string("an undefined tensor");
    return formatted("{} of shape [{}]", c10::toString(tensor.scalar_type()),
                     listed(tensor.sizes(), ", "));
  };
  throw ReductionFailed(formatted("communication hook {}: expected {} for {}, found {}", hook,
                                  text(expected), bucket, text(found)));
}

void MissingGradients::add(const std::string& parameter, int ranks, bool here) {
  if (ranks == 0 || ++missing_ > most_named) return;
  if (group_size_ == 0) return named_.push_back(parameter);
  named_.push_back(formatted("{} (on {} of {} ranks{})", parameter, ranks, group_size_,
                             here ? ", this one too" : ""));
}

std::string MissingGradients::text() const {
  std::string text = join(named_);
  if (missing_ > named_.size()) text += formatted(" and {} more", missing_ - named_.size());
  return text;
}

namespace {

// The statement of a rank, in bytes.
struct Said {
  std::int32_t has_failed = 0;
  char text[508] = {};  // ends with a zero
};

std::string words_of(const Group& group, int rank, const Said& said) {
  std::string words = group.describe(rank);
  if (said.text[0] != 0) words += formatted(": {}", said.text);
  return words;
}

}  // namespace

std::string FailureNotice::take_text() {
  return escaped_line(std::exchange(text_, ""), sizeof(Said::text) - 1);
}

void FailureNotice::post(Group& group, bool failed, const CallOptions& call) {
  Said said{.has_failed = failed ? 1 : 0};
  const std::string text = take_text();
  if (failed) text.copy(said.text, sizeof(said.text) - 1);
  own_ = at::empty({sizeof(Said)}, at::kByte);
  std::memcpy(own_.mutable_data_ptr(), &said, sizeof(Said));
  all_ = at::zeros({group.size(), static_cast<std::int64_t>(sizeof(Said))}, at::kByte);
  work_ = group.all_gather(all_, own_, call);
}

std::string FailureNotice::finish(const Group& group) {
  std::exchange(work_, Work()).wait();
  std::string words;
  for (int rank = 0; rank < group.size(); ++rank) {
    Said said;
    std::memcpy(&said, all_[rank].const_data_ptr(), sizeof(Said));
    if (said.has_failed == 0) continue;
    words += formatted("{}{}", words.empty() ? "" : "; ", words_of(group, rank, said));
  }
  return words;
}

void FailureNotice::settle() { std::exchange(work_, Work()).wait(); }

}  // namespace lockstep::parallel
