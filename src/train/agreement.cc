#include <lockstep/train/agreement.h>

#include "sys/failure_text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace lockstep::train {
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

// The words of rank `root`, which are `length` bytes long, on every rank.
std::string broadcast_text(Group& group, std::string text, std::int64_t length, int root) {
  text.resize(length);
  if (length > 0) group.broadcast(at::from_blob(text.data(), {length}, at::kByte), root).wait();
  return text;
}

}  // namespace

void together(Group& group, const std::function<void()>& action) {
  constexpr std::int64_t success = -1;
  std::optional<std::string> failure = failure_of(action);
  at::Tensor mine = at::empty({1}, at::kLong)
                        .fill_(failure ? static_cast<std::int64_t>(failure->size()) : success);
  at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, mine).wait();
  std::span<const std::int64_t> lengths(all.const_data_ptr<std::int64_t>(), group.size());
  auto first = std::ranges::find_if(lengths, [](std::int64_t length) { return length != success; });
  if (first == lengths.end()) return;
  int rank = static_cast<int>(first - lengths.begin());
  throw CommonFailure(broadcast_text(group, failure.value_or(""), *first, rank), rank);
}

}  // namespace lockstep::train
