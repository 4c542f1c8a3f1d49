#include "comm/c10d/last_words.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::c10d_engine {
namespace {

using namespace std::chrono_literals;

// How long the judge waits for the others to come, and they for the verdict.
constexpr auto hearing = 600ms;
constexpr auto verdict_wait = 2s;

std::string statement(const PostedCall& call) {
  return formatted("{:016x} {}", fingerprint_of(call), describe_fully(call));
}

std::string_view call_in(std::string_view statement) {
  return statement.substr(std::min<std::size_t>(17, statement.size()));
}
std::string_view fingerprint_in(std::string_view statement) { return statement.substr(0, 16); }

}  // namespace

struct LastWords::Verdict {
  char kind = 'A';  // P, T, M or A: PeerLost, Timeout, Mismatch, Aborted
  std::string text;

  [[nodiscard]] std::exception_ptr error() const {
    switch (kind) {
      case 'P':
        return std::make_exception_ptr(PeerLost(text));
      case 'T':
        return std::make_exception_ptr(Timeout(text));
      case 'M':
        return std::make_exception_ptr(Mismatch(text));
      default:
        return std::make_exception_ptr(Aborted(text));
    }
  }
};

LastWords::LastWords(std::shared_ptr<Store> store, std::string group, int rank, int size)
    : store_(std::move(store)), group_(std::move(group)), rank_(rank), size_(size) {}

std::string LastWords::key(std::string_view name) const {
  return formatted("lockstep/end/{}/{}", group_, name);
}

std::exception_ptr LastWords::agree(End end, const PostedCall& call, std::string_view detail,
                                    const std::function<void()>& close) noexcept {
  try {
    return read_or_judge(end, call, detail, close).error();
  } catch (const std::exception& error) {
    close();
    return std::make_exception_ptr(
        PeerLost(formatted("group {}: rank {} in {}: {}; the store that would say more: {}", group_,
                           rank_, describe(call), detail, error.what())));
  }
}

LastWords::Verdict LastWords::read_or_judge(End end, const PostedCall& call,
                                            std::string_view detail,
                                            const std::function<void()>& close) {
  // An abort has no call of its own: what this rank waits in is not the point.
  if (end != End::aborted) store_->set(key(formatted("at/{}", rank_)), statement(call));
  auto me = formatted("{}", rank_);
  bool first = store_->compare_set(key("judge"), "", me) == me;
  if (first && end == End::aborted) {
    Verdict verdict{'A', formatted("group {}: rank {} ended the group: {}", group_, rank_, detail)};
    store_->set(key("verdict"), verdict.kind + verdict.text);
    close();
    return verdict;
  }
  close();
  if (first) {
    auto verdict = judge(end, call, detail);
    store_->set(key("verdict"), verdict.kind + verdict.text);
    return verdict;
  }
  auto text = store_->get(key("verdict"), Deadline::after(verdict_wait));
  return {text.front(), text.substr(1)};
}

LastWords::Verdict LastWords::judge(End end, const PostedCall& call, std::string_view detail) {
  std::vector<std::optional<std::string>> statements(size_);
  std::vector<int> silent;
  auto deadline = Deadline::after(hearing);
  for (;;) {
    silent.clear();
    for (int rank = 0; rank < size_; ++rank) {
      if (call.is_message() && rank != rank_ && rank != call.root) continue;
      if (!statements[rank]) statements[rank] = store_->try_get(key(formatted("at/{}", rank)));
      if (!statements[rank]) silent.push_back(rank);
    }
    if (silent.empty() || deadline.passed()) break;
    std::this_thread::sleep_for(10ms);
  }
  auto mine = statement(call);
  for (int rank = 0; rank < size_ && !call.is_message(); ++rank) {
    if (!statements[rank] || fingerprint_in(*statements[rank]) == fingerprint_in(mine)) continue;
    return {'M',
            formatted("group {}: ranks {} and {} made different calls: rank {} {}; rank {} {}",
                      group_, rank_, rank, rank_, call_in(mine), rank, call_in(*statements[rank]))};
  }
  std::vector<int> present;
  for (int rank = 0; rank < size_; ++rank) {
    if (statements[rank]) present.push_back(rank);
  }
  auto waiters = formatted("{} {} in", rank_list(present), present.size() == 1 ? "waits" : "wait");
  if (end == End::timeout) {
    auto who = silent.empty() ? std::string("all ranks came too late to")
                              : rank_list(silent) + " never called";
    return {'T', formatted("group {}: after {} {} {} that {}", group_,
                           format_duration(call.timeout), who, describe(call), waiters)};
  }
  auto who = silent.empty() ? std::string("a peer") : rank_list(silent);
  return {'P', formatted("group {}: {} is gone from {} that {}: {}", group_, who, describe(call),
                         waiters, detail)};
}

}  // namespace lockstep::c10d_engine
