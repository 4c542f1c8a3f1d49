#include "parallel/failure_notice.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/visible.h"

#include <lockstep/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace lockstep::parallel {
namespace {

// What a rank says, in bytes.
struct Said {
  std::int32_t has_failed = 0;
  std::int32_t world_rank = -1;  // -1: no launcher has told it
  char text[504] = {};           // ends with a zero
};

// As launchers tell it; ranks that are threads have none of their own.
std::int32_t rank_in_world(const Group& group) {
  if (group.backend() == "local") return -1;
  try {
    return static_cast<std::int32_t>(environment::integer("RANK").value_or(-1));
  } catch (const BadInput&) {
    return -1;
  }
}

std::string words_of(const Said& said, int rank) {
  std::string words = formatted("rank {}", rank);
  if (said.world_rank >= 0 && said.world_rank != rank)
    words += formatted(" (rank {} of the world)", said.world_rank);
  if (said.text[0] != 0) words += formatted(": {}", said.text);
  return words;
}

}  // namespace

void FailureNotice::post(Group& group, bool failed, c10::Device device, const CallOptions& call) {
  Said said{.has_failed = failed ? 1 : 0, .world_rank = rank_in_world(group)};
  const std::string text = visible_line(std::exchange(text_, ""), sizeof(said.text) - 1);
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
    words += formatted("{}{}", words.empty() ? "" : "; ", words_of(said, rank));
  }
  return words;
}

void FailureNotice::settle() { std::exchange(work_, Work()).wait(); }

}  // namespace lockstep::parallel
