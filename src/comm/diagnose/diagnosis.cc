#include "comm/diagnose/diagnosis.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/diagnose/call_watch.h"
#include "sys/process_identity.h"
#include "sys/run_with_timeout.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::watch {
namespace {

using namespace std::chrono_literals;

// How long the judge listens (a statement is at most a period old), and how long the others wait
// for the verdict.
constexpr auto hearing_time = 400ms;
constexpr auto verdict_wait = 3s;

std::string_view waits(std::size_t ranks) { return ranks == 1 ? "waits" : "wait"; }

char kind_of(End end) {
  switch (end) {
    case End::timeout:
      return 'T';
    case End::mismatch:
      return 'M';
    case End::aborted:
      return 'A';
    default:
      return 'P';
  }
}

}  // namespace

// What is known of the ranks that an operation needs.
struct LastWords::Hearing {
  struct Witness {
    int rank = 0;
    Statement statement;
    sys::ProcessState state = sys::ProcessState::unknown;
    bool has_called = false;
    [[nodiscard]] bool is_gone() const {
      return statement.has_left ? !has_called : state == sys::ProcessState::ended;
    }
  };
  std::vector<Witness> witnesses;

  template <typename Condition>
  [[nodiscard]] std::vector<int> ranks_where(Condition condition) const {
    std::vector<int> ranks;
    for (const auto& witness : witnesses)
      if (condition(witness)) ranks.push_back(witness.rank);
    return ranks;
  }
  [[nodiscard]] const Witness& of(int rank) const {
    return *std::ranges::find(witnesses, rank, &Witness::rank);
  }
  // ranks 0, 2 wait in
  [[nodiscard]] std::string waiters() const {
    auto ranks = ranks_where([](const auto& one) { return one.has_called && !one.is_gone(); });
    return formatted("{} {} in", rank_list(ranks), waits(ranks.size()));
  }
  // `next` is the call that others wait in. A process that ended or was stopped may have made more
  // calls than it came to tell of.
  [[nodiscard]] std::string last_call(int rank, Route route, std::uint64_t next) const {
    const auto& routes = of(rank).statement.routes;
    auto found = routes.find(route);
    if (found == routes.end()) found = routes.find(Route{});
    if (found == routes.end() || found->second.calls.empty()) {
      auto message =
          std::ranges::find_if(routes, [](const auto& one) { return !one.second.calls.empty(); });
      if (message == routes.end()) return "it has made no call yet";
      return "it has called " + message->second.calls.back().text;
    }
    const auto& witness = of(rank);
    bool is_cut_short =
        !witness.statement.has_left &&
        (witness.state == sys::ProcessState::ended || witness.state == sys::ProcessState::stopped);
    auto said = is_cut_short && found->first == route && found->second.last + 1 < next
                    ? "the last call it told of was "
                    : "its last call was ";
    return said + found->second.calls.back().text;
  }
  // "; its process 71 is stopped", where that is so.
  [[nodiscard]] std::string condition_of(int rank) const {
    const auto& witness = of(rank);
    if (witness.state != sys::ProcessState::stopped) return {};
    return formatted("; its process {} is stopped", sys::pid_in(witness.statement.process));
  }
  // What a rank said of a call; null when it said nothing.
  [[nodiscard]] const StatedCall* stated(int rank, Route route, std::uint64_t number) const {
    const auto& routes = of(rank).statement.routes;
    auto found = routes.find(route);
    if (found == routes.end()) return nullptr;
    auto call = std::ranges::find(found->second.calls, number, &StatedCall::number);
    return call == found->second.calls.end() ? nullptr : &*call;
  }
  // The number of a rank's latest call, 0 for none.
  [[nodiscard]] std::uint64_t last_number(int rank, Route route) const {
    const auto& routes = of(rank).statement.routes;
    auto found = routes.find(route);
    return found == routes.end() ? 0 : found->second.last;
  }
  [[nodiscard]] std::vector<int> furthest_behind(std::span<const int> ranks, Route route) const;
  // rank 2 never called broadcast #8 (weights, 4 kB) that rank 1 waits in; ... Empty where nobody
  // of `missing` has said which call that is.
  [[nodiscard]] std::string due_after(std::span<const int> behind, std::span<const int> missing,
                                      Route route) const;
  [[nodiscard]] std::string overdue(const PostedCall& call, Route route) const;
};

std::vector<int> LastWords::Hearing::furthest_behind(std::span<const int> ranks,
                                                     Route route) const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (int rank : ranks) least = std::min(least, last_number(rank, route));
  std::vector<int> behind;
  for (int rank : ranks)
    if (last_number(rank, route) == least) behind.push_back(rank);
  return behind;
}

std::string LastWords::Hearing::due_after(std::span<const int> behind, std::span<const int> missing,
                                          Route route) const {
  const auto number = last_number(behind.front(), route) + 1;
  std::vector<int> waiting;
  std::string due;
  for (int rank : missing) {
    if (last_number(rank, route) != number) continue;
    waiting.push_back(rank);
    due = of(rank).statement.routes.at(route).calls.back().text;
  }
  if (waiting.empty()) return {};
  return formatted("{} never called {} that {} {} in; {}", rank_list(behind), due,
                   rank_list(waiting), waits(waiting.size()),
                   behind.size() > 1 ? formatted("of rank {}, ", behind.front()) : "");
}

std::string LastWords::Hearing::overdue(const PostedCall& call, Route route) const {
  auto missing = ranks_where([](const auto& one) { return !one.has_called; });
  if (missing.empty()) {
    auto text = formatted("all ranks called {}, but it is not complete", describe(call));
    for (const auto& witness : witnesses) {
      if (auto condition = condition_of(witness.rank); !condition.empty())
        text += formatted("; of rank {}{}", witness.rank, condition.substr(1));
    }
    return text;
  }
  // Some of them may wait themselves, in an earlier call, for those who are furthest behind. A
  // stopped process may not even have said how far it came.
  const auto stopped = ranks_where(
      [](const auto& one) { return !one.has_called && one.state == sys::ProcessState::stopped; });
  const auto& named = stopped.empty() ? missing : stopped;
  const auto behind = furthest_behind(named, route);
  const int first = behind.front();
  if (behind.size() < missing.size()) {
    auto due = due_after(behind, missing, route);
    if (!due.empty()) return due + last_call(first, route, 0) + condition_of(first);
  }
  auto text =
      formatted("{} never called {} that {}; ", rank_list(named), describe_due(call), waiters());
  if (named.size() > 1) text += formatted("of rank {}, ", first);
  return text + last_call(first, route, call.number) + condition_of(first);
}

LastWords::LastWords(std::shared_ptr<Store> store, std::string group, int rank, int size,
                     Duration patience)
    : store_(std::move(store)),
      group_(std::move(group)),
      rank_(rank),
      size_(size),
      patience_(patience) {}

std::string LastWords::of_group() const { return words_of_group(group_); }

std::string LastWords::key(std::string_view name) const { return key_of_end(group_, name); }

std::exception_ptr LastWords::agree(End end, const PostedCall& call, std::string_view detail,
                                    const std::function<void()>& close) noexcept {
  struct Shared {
    std::mutex mutex;
    std::function<void()> close;  // empty once the caller has gone on
    std::exception_ptr error;
  };
  auto shared = std::make_shared<Shared>();
  shared->close = close;
  auto close_now = [shared] {
    std::lock_guard lock(shared->mutex);
    if (shared->close) shared->close();
  };
  auto known = call.without_tensors();
  bool over = sys::run_with_timeout(
      [=, self = *this, text = std::string(detail)]() mutable {
        auto error = self.agree_now(end, known, text, close_now);
        std::lock_guard lock(shared->mutex);
        shared->error = error;
      },
      patience_);
  if (!over) close_now();
  std::lock_guard lock(shared->mutex);
  shared->close = nullptr;
  return shared->error ? shared->error : alone(end, call, detail, "it does not answer");
}

std::exception_ptr LastWords::agree_now(End end, const PostedCall& call, std::string_view detail,
                                        const std::function<void()>& close) noexcept {
  try {
    return read_or_judge(end, call, detail, close).error();
  } catch (const std::exception& error) {
    close();
    return alone(end, call, detail, error.what());
  }
}

std::exception_ptr LastWords::alone(End end, const PostedCall& call, std::string_view detail,
                                    std::string_view problem) const {
  auto what = end == End::timeout ? formatted("after {}: {} is not complete",
                                              format_duration(call.timeout), describe(call))
                                  : formatted("{}: {}", describe(call), detail);
  if (end == End::aborted) what = formatted("rank {} ended the group: {}", rank_, detail);
  if (end == End::mismatch) what = detail;
  auto text = formatted("{}; of the store, which would say more: {}{}", what, problem, of_group());
  return Verdict{kind_of(end), text}.error();
}

Verdict LastWords::read_or_judge(End end, const PostedCall& call, std::string_view detail,
                                 const std::function<void()>& close) {
  auto me = formatted("{}", rank_);
  if (store_->compare_set(key("judge"), "", me) != me) {
    close();
    auto text = store_->get(key("verdict"), Deadline::after(verdict_wait));
    return {text.front(), text.substr(1)};
  }
  Verdict verdict;
  if (end == End::aborted) {
    verdict.text = formatted("rank {} ended the group: {}{}", rank_, detail, of_group());
  } else if (end == End::mismatch) {
    verdict = {'M', std::string(detail)};
  } else {
    close();
    verdict = judge(end, call, detail);
  }
  store_->set(key("verdict"), verdict.kind + verdict.text);
  close();
  return verdict;
}

LastWords::Hearing LastWords::hear(const PostedCall& call, Duration limit) {
  const auto route = route_of(call.collective, call.root, rank_);
  const auto deadline = Deadline::after(limit);
  for (;;) {
    Hearing hearing;
    for (int rank = 0; rank < size_; ++rank) {
      if (call.is_message() && rank != rank_ && rank != call.root) continue;
      Hearing::Witness witness{.rank = rank, .statement = {}};
      if (auto said = statement_of(*store_, group_, rank)) witness.statement = *std::move(said);
      auto found = witness.statement.routes.find(route);
      witness.has_called = rank == rank_ || (found != witness.statement.routes.end() &&
                                             found->second.last >= call.number);
      witness.state = sys::state_of_process(witness.statement.process);
      hearing.witnesses.push_back(std::move(witness));
    }
    bool complete = std::ranges::all_of(
        hearing.witnesses, [](const auto& one) { return one.has_called || one.is_gone(); });
    if (complete || deadline.passed()) return hearing;
    std::this_thread::sleep_for(10ms);
  }
}

std::string LastWords::difference_in(const Hearing& hearing, const PostedCall& call) const {
  const auto route = route_of(call.collective, call.root, rank_);
  for (const auto& witness : hearing.witnesses) {
    const auto* theirs = hearing.stated(witness.rank, route, call.number);
    if (theirs == nullptr || theirs->fingerprint == fingerprint_of(call)) continue;
    return mismatch_sentence({.route = route,
                              .mine = describe_fully(call),
                              .theirs = theirs->text,
                              .number = call.number},
                             group_, rank_, witness.rank);
  }
  return {};
}

Verdict LastWords::judge(End end, const PostedCall& call, std::string_view detail) {
  const auto hearing = hear(call, hearing_time);
  if (auto difference = difference_in(hearing, call); !difference.empty()) return {'M', difference};
  bool is_lost = std::ranges::any_of(hearing.witnesses, &Hearing::Witness::is_gone);
  if (end == End::lost || is_lost) return judge_loss(hearing, call, detail);
  const auto route = route_of(call.collective, call.root, rank_);
  return {'T', formatted("after {}: {}{}", format_duration(call.timeout),
                         hearing.overdue(call, route), of_group())};
}

Verdict LastWords::judge_loss(const Hearing& hearing, const PostedCall& call,
                              std::string_view detail) const {
  const auto route = route_of(call.collective, call.root, rank_);
  auto gone = hearing.ranks_where([](const auto& one) { return one.is_gone(); });
  if (gone.empty()) {  // on another machine, or only its connection is
    auto silent = hearing.ranks_where([](const auto& one) { return !one.has_called; });
    auto who = silent.empty() ? std::string("a peer") : rank_list(silent);
    return {'P', formatted("{} is gone from {} that {}: {}{}", who, describe(call),
                           hearing.waiters(), detail, of_group())};
  }
  const auto& first = hearing.of(gone.front());
  auto how =
      first.statement.has_left
          ? formatted("it left in order without taking part in {}", describe(call))
          : formatted("its process {} ended without leaving", sys::pid_in(first.statement.process));
  std::string others;
  if (gone.size() > 1) {
    others = formatted("; so {} {}", gone.size() == 2 ? "was" : "were",
                       rank_list(std::span(gone).subspan(1)));
  }
  return {'P', formatted("rank {} of {} was lost: {}; {}{}; {} {}{}", first.rank, size_, how,
                         hearing.last_call(first.rank, route, call.number), others,
                         hearing.waiters(), describe(call), of_group())};
}

std::string LastWords::said_aside(const PostedCall& call,
                                  std::function<std::string(LastWords&)> say) noexcept {
  struct Shared {
    std::mutex mutex;
    std::optional<std::string> text;
  };
  auto shared = std::make_shared<Shared>();
  auto known = describe(call);
  static_cast<void>(sys::run_with_timeout(
      [=, self = *this, say = std::move(say)]() mutable {
        std::string text;
        try {
          text = say(self);
        } catch (const std::exception& error) {
          text = formatted("in {}; of the store, which would say more: {}", known, error.what());
        }
        std::lock_guard lock(shared->mutex);
        shared->text = text;
      },
      patience_));
  std::lock_guard lock(shared->mutex);
  return shared->text.value_or(formatted("in {}; the store does not answer", known));
}

std::string LastWords::overdue(const PostedCall& call, Duration waited) noexcept {
  auto text = said_aside(call, [known = call.without_tensors()](LastWords& self) {
    auto route = route_of(known.collective, known.root, self.rank_);
    return self.hear(known, Duration::zero()).overdue(known, route);
  });
  return formatted("after {}: {}{}", format_duration(waited), text, of_group());
}

std::string LastWords::difference(const PostedCall& call, std::optional<int> other) noexcept {
  return said_aside(call, [known = call.without_tensors(), other](LastWords& self) {
    const auto hearing = self.hear(known, hearing_time);
    if (!other) return self.difference_in(hearing, known);
    const auto route = route_of(known.collective, known.root, self.rank_);
    const auto* theirs = hearing.stated(*other, route, known.number);
    return mismatch_sentence({.route = route,
                              .mine = describe_fully(known),
                              .theirs = theirs != nullptr ? theirs->text : "something else",
                              .number = known.number},
                             self.group_, self.rank_, *other);
  });
}

}  // namespace lockstep::watch
