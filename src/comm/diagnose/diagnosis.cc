#include "comm/diagnose/diagnosis.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "comm/diagnose/call_watch.h"
#include "sys/process_info.h"
#include "sys/thread.h"

#include <algorithm>
#include <future>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::diagnose {
namespace {

using namespace std::chrono_literals;

// How long the reporter waits for statements (they are at most one period old), and how long the
// other ranks wait for its report.
constexpr auto survey_time = 400ms;
constexpr auto report_wait = 3s;

// Runs `action` in a separate thread and returns its result. Throws the exception of `action`;
// SystemError if the thread cannot start; and Timeout if `action` has not ended within the limit.
template <class Action>
auto run_in_time(Action action, Duration limit) {
  using Task = std::packaged_task<std::invoke_result_t<Action&>()>;
  auto task = std::make_shared<Task>(std::move(action));
  if (!sys::run_with_timeout([task] { (*task)(); }, limit)) throw Timeout("it does not answer");
  return task->get_future().get();
}

}  // namespace

// The known state of the ranks that an operation needs.
struct Diagnosis::Survey {
  struct Surveyed {
    int rank = 0;
    Statement statement;
    sys::ProcessState state = sys::ProcessState::unknown;
    bool has_called = false;
    [[nodiscard]] bool is_gone() const {
      return statement.has_left ? !has_called : state == sys::ProcessState::ended;
    }
    [[nodiscard]] PeerStatus status(ChannelKey channel, std::uint64_t number) const;
  };
  std::vector<Surveyed> ranks;

  template <typename Condition>
  [[nodiscard]] std::vector<int> ranks_where(Condition condition) const {
    std::vector<int> found;
    for (const auto& one : ranks)
      if (condition(one)) found.push_back(one.rank);
    return found;
  }
  [[nodiscard]] const Surveyed& of(int rank) const {
    return *std::ranges::find(ranks, rank, &Surveyed::rank);
  }
  [[nodiscard]] std::vector<int> waiting() const {
    return ranks_where([](const auto& one) { return one.has_called && !one.is_gone(); });
  }
  [[nodiscard]] std::string overdue(const CallRecord& call, ChannelKey channel, Duration waited,
                                    const GroupNames& group) const {
    std::vector<PeerStatus> statuses;
    for (const auto& one : ranks) statuses.push_back(one.status(channel, call.number));
    return overdue_sentence(call, statuses, waited, group);
  }
};

// `number`: the call that other ranks wait in.
PeerStatus Diagnosis::Survey::Surveyed::status(ChannelKey channel, std::uint64_t number) const {
  PeerStatus result{.rank = rank, .has_called = has_called};
  const auto* told = &statement.of(channel);
  if (told->calls.empty()) told = &statement.of({});
  for (const auto& [key, other] : statement.channels) {
    if (told->calls.empty()) told = &other;
  }
  if (!told->calls.empty()) {
    result.last = told->calls.back().call;
    result.last_is_of_channel = told == &statement.of(channel);
  }
  if (state == sys::ProcessState::stopped) result.stopped_process = sys::pid_in(statement.process);
  bool is_cut_short = !statement.has_left &&
                      (state == sys::ProcessState::ended || state == sys::ProcessState::stopped);
  result.may_have_called_more =
      is_cut_short && result.last_is_of_channel && statement.of(channel).last + 1 < number;
  return result;
}

Diagnosis::Diagnosis(std::shared_ptr<Store> store, GroupNames group, int rank, int size,
                     Duration store_timeout)
    : store_(std::move(store)),
      group_(std::move(group)),
      rank_(rank),
      size_(size),
      store_timeout_(store_timeout) {}

std::string Diagnosis::key(std::string_view name) const { return key_of_end(group_.name(), name); }

std::exception_ptr Diagnosis::agree(FailureKind kind, const CallRecord& call,
                                    std::string_view detail,
                                    const std::function<void()>& close) noexcept try {
  struct Closing {
    std::mutex mutex;
    std::function<void()> close;  // empty once the caller has returned
  };
  auto closing = std::make_shared<Closing>();
  closing->close = close;
  const ScopeExit returned([&] {
    const std::lock_guard lock(closing->mutex);
    closing->close = nullptr;
  });
  auto close_now = [closing] {
    const std::lock_guard lock(closing->mutex);
    if (closing->close) closing->close();
  };
  auto agreed = [=, self = *this, text = std::string(detail)]() mutable {
    return self.read_or_write_report(kind, call, text, close_now);
  };
  try {
    return run_in_time(std::move(agreed), store_timeout_).error();
  } catch (const std::exception& error) {
    close_now();
    return alone(kind, call, detail, error.what()).error();
  }
} catch (...) {
  close();
  return std::current_exception();
}

FailureReport Diagnosis::alone(FailureKind kind, const CallRecord& call, std::string_view detail,
                               std::string_view problem) const {
  auto what = kind == FailureKind::timeout ? words_of_incomplete(call, call.timeout, group_)
                                           : words_of_trouble(call, detail, group_);
  if (kind == FailureKind::aborted) what = words_of_abort(rank_, detail, group_);
  if (kind == FailureKind::mismatch) what = detail;
  return {kind, undiagnosed_sentence(what, problem, group_)};
}

FailureReport Diagnosis::read_or_write_report(FailureKind kind, const CallRecord& call,
                                              std::string_view detail,
                                              const std::function<void()>& close) {
  auto me = formatted("{}", rank_);
  if (store_->compare_set(key("reporter"), "", me) != me) {
    close();
    return FailureReport::read(store_->get(key("report"), Deadline::after(report_wait)));
  }
  FailureReport result{kind, std::string(detail)};
  if (kind == FailureKind::aborted) {
    result.text = aborted_sentence(rank_, detail, group_);
  } else if (kind != FailureKind::mismatch) {
    close();
    result = report(kind, call, detail);
  }
  store_->set(key("report"), result.written());
  close();
  return result;
}

Diagnosis::Survey Diagnosis::survey(const CallRecord& call, Duration limit) {
  const auto channel = channel_of(call.collective, call.root, rank_);
  const auto deadline = Deadline::after(limit);
  for (;;) {
    Survey survey;
    for (int rank = 0; rank < size_; ++rank) {
      if (is_message(call.collective) && rank != rank_ && rank != call.root) continue;
      Survey::Surveyed one{.rank = rank, .statement = {}};
      if (auto told = statement_of(*store_, group_.name(), rank)) one.statement = *std::move(told);
      one.has_called = rank == rank_ || one.statement.of(channel).last >= call.number;
      one.state = sys::state_of_process(one.statement.process);
      survey.ranks.push_back(std::move(one));
    }
    bool complete = std::ranges::all_of(
        survey.ranks, [](const auto& one) { return one.has_called || one.is_gone(); });
    if (complete || deadline.passed()) return survey;
    std::this_thread::sleep_for(10ms);
  }
}

std::string Diagnosis::difference_in(const Survey& survey, const CallRecord& call) const {
  const auto channel = channel_of(call.collective, call.root, rank_);
  for (const auto& one : survey.ranks) {
    const auto* theirs = one.statement.of(channel).find(call.number);
    if (theirs == nullptr || theirs->fingerprint == fingerprint_of(call)) continue;
    return mismatch_sentence(call, rank_, theirs->call, one.rank, group_);
  }
  return {};
}

FailureReport Diagnosis::report(FailureKind kind, const CallRecord& call, std::string_view detail) {
  const auto found = survey(call, survey_time);
  if (auto difference = difference_in(found, call); !difference.empty())
    return {FailureKind::mismatch, difference};
  bool is_lost = std::ranges::any_of(found.ranks, &Survey::Surveyed::is_gone);
  if (kind == FailureKind::peer_lost || is_lost)
    return {FailureKind::peer_lost, lost_in(found, call, detail)};
  const auto channel = channel_of(call.collective, call.root, rank_);
  return {FailureKind::timeout, found.overdue(call, channel, call.timeout, group_)};
}

std::string Diagnosis::lost_in(const Survey& survey, const CallRecord& call,
                               std::string_view detail) const {
  auto gone = survey.ranks_where([](const auto& one) { return one.is_gone(); });
  if (gone.empty()) {  // the process is on another host, or only its connection is gone
    auto silent = survey.ranks_where([](const auto& one) { return !one.has_called; });
    return gone_sentence(call, silent, survey.waiting(), detail, group_);
  }
  const auto& first = survey.of(gone.front());
  LostRank lost{.rank = first.rank,
                .size = size_,
                .by_exception = first.statement.by_exception,
                .status = first.status(channel_of(call.collective, call.root, rank_), call.number),
                .call = call,
                .waiting = survey.waiting(),
                .also_lost = {gone.begin() + 1, gone.end()}};
  if (!first.statement.has_left) lost.ended_process = sys::pid_in(first.statement.process);
  return lost_sentence(lost, group_);
}

std::string Diagnosis::said_in_time(const std::function<std::string()>& otherwise,
                                    std::function<Say> say) {
  try {
    return run_in_time([self = *this, say = std::move(say)]() mutable { return say(self); },
                       store_timeout_);
  } catch (const std::exception& error) {
    return undiagnosed_sentence(otherwise(), error.what(), group_);
  }
}

std::string Diagnosis::overdue(const CallRecord& call, Duration waited) noexcept try {
  auto otherwise = [&] { return words_of_incomplete(call, waited, group_); };
  return said_in_time(otherwise, [call, waited](Diagnosis& self) {
    auto channel = channel_of(call.collective, call.root, self.rank_);
    return self.survey(call, Duration::zero()).overdue(call, channel, waited, self.group_);
  });
} catch (const std::exception&) {
  return {};
}

std::string Diagnosis::difference(const CallRecord& call, std::optional<int> other) noexcept try {
  auto otherwise = [&] { return words_of_difference(call, rank_, group_); };
  return said_in_time(otherwise, [call, other](Diagnosis& self) {
    const auto found = self.survey(call, survey_time);
    if (!other) return self.difference_in(found, call);
    const auto channel = channel_of(call.collective, call.root, self.rank_);
    const auto* theirs = found.of(*other).statement.of(channel).find(call.number);
    return mismatch_sentence(call, self.rank_, theirs ? std::optional(theirs->call) : std::nullopt,
                             *other, self.group_);
  });
} catch (const std::exception&) {
  return {};
}

}  // namespace lockstep::diagnose
