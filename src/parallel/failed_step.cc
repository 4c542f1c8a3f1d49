// The errors and notices of a backward() that failed (backward_step.h).
#include "base/escaped.h"
#include "base/format.h"
#include "parallel/backward_step.h"

#include <lockstep/parallel/handle.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

namespace lockstep::parallel {

void throw_sparse_gradient(const std::string& parameter, std::string_view strategy) {
  throw ReductionFailed(formatted(
      "the gradient of {} is sparse; {} averages dense ones: make the Embedding without "
      "sparse(true), or train the table in a parameter server, which takes sparse gradients "
      "(by_rows)",
      parameter, strategy));
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
