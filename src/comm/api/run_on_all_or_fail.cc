#include <lockstep/comm/run_on_all_or_fail.h>

#include "base/format.h"
#include "sys/failure_text.h"
#include "sys/topology.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace lockstep {
namespace {

std::optional<std::string> failure_of(const std::function<void()>& action) {
  try {
    action();
    return std::nullopt;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return sys::failure_text(error);
  }
}

// A rank's result: the length of its message, and the length of the message's prefix that names the
// rank.
struct Outcome {
  static constexpr std::int64_t success = -1;
  std::int64_t length = success, own_name = 0;
};

std::vector<Outcome> exchange(Group& group, Outcome mine) {
  std::vector<Outcome> all(group.size());
  at::Tensor to = at::from_blob(all.data(), {2 * group.size()}, at::kLong);
  group.all_gather(to, at::from_blob(&mine, {2}, at::kLong)).wait();
  return all;
}

}  // namespace

std::string broadcast_text(Group& group, std::string text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  group.broadcast(at::from_blob(&length, {1}, at::kLong), root).wait();
  text.resize(static_cast<std::size_t>(length));
  if (length > 0) group.broadcast(at::from_blob(text.data(), {length}, at::kByte), root).wait();
  return text;
}

void run_on_all_or_fail(Group& group, const std::function<void()>& action) {
  const std::optional<std::string> failure = failure_of(action);
  const std::string name = formatted("rank {} on host {}: ", group.rank(), sys::host_name());
  Outcome mine;
  if (failure) mine = {std::ssize(name) + std::ssize(*failure), std::ssize(name)};
  const std::vector<Outcome> all = exchange(group, mine);
  const auto failed = [](const Outcome& outcome) { return outcome.length != Outcome::success; };
  const auto first = std::ranges::find_if(all, failed);
  if (first == all.end()) return;
  const int rank = static_cast<int>(first - all.begin());
  std::string words = broadcast_text(group, name + failure.value_or(""), rank);
  // If all ranks failed, drop the name of the rank.
  if (std::ranges::all_of(all, failed)) words.erase(0, first->own_name);
  throw CollectiveFailure(words, rank);
}

}  // namespace lockstep
