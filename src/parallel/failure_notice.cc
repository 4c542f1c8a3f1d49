#include "parallel/failure_notice.h"

#include "base/format.h"
#include "base/visible.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace lockstep::parallel {
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
  return visible_line(std::exchange(text_, ""), sizeof(Said::text) - 1);
}

void FailureNotice::post(Group& group, bool failed, c10::Device device, const CallOptions& call) {
  Said said{.has_failed = failed ? 1 : 0};
  const std::string text = take_text();
  if (failed) text.copy(said.text, sizeof(said.text) - 1);
  own_ = at::empty({sizeof(Said)}, at::kByte);
  std::memcpy(own_.mutable_data_ptr(), &said, sizeof(Said));
  all_ = at::zeros({group.size(), static_cast<std::int64_t>(sizeof(Said))}, at::kByte);
  if (group.backend() == "nccl") {
    own_ = own_.to(device);
    all_ = all_.to(device);
  }
  work_ = group.all_gather(all_, own_, call);
}

std::string FailureNotice::finish(const Group& group) {
  std::exchange(work_, Work()).wait();
  const at::Tensor all = all_.cpu();
  std::string words;
  for (int rank = 0; rank < group.size(); ++rank) {
    Said said;
    std::memcpy(&said, all[rank].const_data_ptr(), sizeof(Said));
    if (said.has_failed == 0) continue;
    words += formatted("{}{}", words.empty() ? "" : "; ", words_of(group, rank, said));
  }
  return words;
}

void FailureNotice::settle() { std::exchange(work_, Work()).wait(); }

}  // namespace lockstep::parallel
