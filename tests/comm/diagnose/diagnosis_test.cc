// The call watch and the diagnosis without a backend: ranks are objects that share a store in
// memory.
#include "comm/diagnose/diagnosis.h"

#include <lockstep/base/error.h>
#include <lockstep/store/memory_store.h>

#include "comm/diagnose/call_watch.h"
#include "comm/diagnose/calls.h"
#include "support/messages.h"
#include "sys/process_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace lockstep;
using namespace std::chrono_literals;
using diagnose::CallWatch;
using diagnose::Diagnosis;
using diagnose::FailureKind;
using test::reduction;

namespace {

// Counts its requests and can stop answering.
class WatchedStore : public MemoryStore {
 public:
  void set(std::string_view key, std::string_view value) override {
    count();
    MemoryStore::set(key, value);
  }
  [[nodiscard]] std::optional<std::string> try_get(std::string_view key) override {
    count();
    return MemoryStore::try_get(key);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    count();
    return MemoryStore::compare_set(key, expected, desired);
  }
  void answer(bool answers) {
    std::lock_guard lock(mutex_);
    answers_ = answers;
    changed_.notify_all();
  }
  [[nodiscard]] int asked() const { return asked_; }

 private:
  void count() {
    ++asked_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return answers_; });
  }

  std::atomic<int> asked_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool answers_ = true;
};

// The diagnosis state of one process for a group.
struct WatchedRank {
  WatchedRank(const std::shared_ptr<Store>& store, int rank, int size, Duration store_timeout = 5s)
      : rank(rank),
        calls(store, store_timeout),
        diagnosis(store, {"world"}, rank, size, store_timeout) {
    member = calls.join({"world"}, rank, size, made, [this](const std::string& text) {
      std::lock_guard lock(mutex);
      mismatch = text;
      is_told = true;
    });
  }
  ~WatchedRank() { calls.leave(member, false); }

  void note(const CallRecord& call) {
    made->add(channel_of(call.collective, call.root, rank), call, fingerprint_of(call));
    member->note_post();
  }

  std::string found() {
    std::lock_guard lock(mutex);
    return mismatch;
  }

  std::mutex mutex;
  std::string mismatch;
  std::atomic<bool> is_told = false;
  const int rank;
  const std::shared_ptr<diagnose::OpenCalls> made = std::make_shared<diagnose::OpenCalls>("world");
  CallWatch calls;
  Diagnosis diagnosis;
  std::shared_ptr<diagnose::WatchedGroup> member;
};

std::vector<std::unique_ptr<WatchedRank>> ranks_on(const std::shared_ptr<Store>& store, int size) {
  std::vector<std::unique_ptr<WatchedRank>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<WatchedRank>(store, rank, size));
  return ranks;
}

template <class E>
std::string text_of(const std::exception_ptr& error) {
  return test::message_of<E>([&] { std::rethrow_exception(error); });
}

TEST(Diagnosis, AllRanksThrowTheSameSentence) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 3);
  for (auto& rank : ranks) rank->note(reduction(1, 5));
  ranks[0]->note(reduction(2, 1000, "bucket 2"));
  ranks[1]->note(reduction(2, 1000, "bucket 2"));
  int closed = 0;
  const auto call = reduction(2, 1000, "bucket 2");
  const auto first = text_of<Timeout>(
      ranks[0]->diagnosis.agree(FailureKind::timeout, call, "", [&] { ++closed; }));
  EXPECT_GE(closed, 1);
  test::expect_words(first, {"after 1s: rank 2 never called all_reduce #2 (bucket 2, 3.91 KiB, "
                             "diagnosis_test.cc:",
                             ") that ranks 0, 1 wait in; its last call was all_reduce #1 (sum, 5 x "
                             "float32, diagnosis_test.cc:"});
  EXPECT_EQ(
      text_of<Timeout>(ranks[1]->diagnosis.agree(FailureKind::peer_lost, call, "closed", [] {})),
      first);
  EXPECT_EQ(text_of<Timeout>(ranks[2]->diagnosis.agree(FailureKind::aborted, {}, "enough", [] {})),
            first);
}

TEST(Diagnosis, ARankThatHasLeftIsLost) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 2);
  ranks[0]->note(reduction(1));
  ranks[1]->calls.leave(ranks[1]->member, true);
  test::expect_words(
      text_of<PeerLost>(
          ranks[0]->diagnosis.agree(FailureKind::peer_lost, reduction(1), "closed", [] {})),
      {"rank 1 of 2 was lost: it left in order without taking part in all_reduce #1 (3.91 KiB, ",
       ") that rank 0 waits in; it has made no call yet"});
}

// Returns the identity of a process that has ended, as in a rank's last statement.
std::string ended_process() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  const auto child = ::fork();
  if (child == 0) {
    const auto text = sys::process_identity();
    ::_exit(::write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  ::waitpid(child, nullptr, 0);
  std::string text(200, ' ');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), 200))));
  for (int end : ends) ::close(end);
  return text;
}

TEST(Diagnosis, AKilledRankMayHaveCalledMoreThanItTold) {
  auto store = std::make_shared<WatchedStore>();
  WatchedRank rank(store, 0, 2);
  diagnose::CallHistory told;
  told.note({}, reduction(1, 5), fingerprint_of(reduction(1, 5)));
  store->set("lockstep/calls/world/1", told.statement(ended_process(), false));
  test::expect_words(
      text_of<PeerLost>(
          rank.diagnosis.agree(FailureKind::peer_lost, reduction(2), "closed", [] {})),
      {"ended without leaving; its last call was all_reduce #1 (sum, 5 x float32, "});
  auto later = Diagnosis(store, {"later"}, 0, 2);
  store->set("lockstep/calls/later/1", told.statement(ended_process(), false));
  test::expect_words(
      text_of<PeerLost>(later.agree(FailureKind::peer_lost, reduction(9), "closed", [] {})),
      {"ended without leaving; the last call it reported was all_reduce #1 (sum"});
}

TEST(CallWatch, TellsWhoHasOpenCallsThatTheGroupEnds) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 3);
  ranks[1]->note(reduction(1));
  ranks[2]->note(reduction(1));
  ranks[2]->made->complete({{}, 1});
  std::this_thread::sleep_for(2 * CallWatch::period);
  static_cast<void>(ranks[0]->diagnosis.agree(FailureKind::aborted, {}, "enough", [] {}));
  for (int round = 0; round < 1000 && !ranks[1]->is_told; ++round) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(ranks[1]->is_told);
  EXPECT_EQ(ranks[1]->found(), "");
  EXPECT_FALSE(ranks[2]->is_told);
}

CallRecord receipt(int from) { return test::message(Collective::recv, from, 3); }

TEST(Diagnosis, OfRanksThatWaitForEachOthersMessages) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 2);
  ranks[0]->note(receipt(1));
  ranks[1]->note(receipt(0));
  test::expect_words(
      text_of<Timeout>(ranks[0]->diagnosis.agree(FailureKind::timeout, receipt(1), "", [] {})),
      {"after 1s: rank 1 never called send for recv #1 from rank 1 (12 B, diagnosis_test.cc:",
       ") that rank 0 waits in; it has called recv #1 from rank 0 (3 x float32, "
       "diagnosis_test.cc:"});
}

TEST(Diagnosis, OfACallThatARunFoundToDiffer) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 2);
  ranks[0]->note(reduction(1, 5));
  EXPECT_EQ(ranks[0]->diagnosis.difference(reduction(1, 5)), "");
  ranks[1]->note(reduction(1, 5, "theirs"));
  for (auto other : {std::optional<int>(), std::optional<int>(1)}) {
    test::expect_words(
        ranks[0]->diagnosis.difference(reduction(1, 5), other),
        {"rank 0 called all_reduce #1 (sum, 5 x float32, diagnosis_test.cc:",
         ") where rank 1 called all_reduce #1 (theirs, sum, 5 x float32, diagnosis_test"});
  }
}

TEST(Diagnosis, AStoreThatDoesNotAnswerHoldsUpNobody) {
  auto store = std::make_shared<WatchedStore>();
  const auto begin = Clock::now();
  {
    WatchedRank rank(store, 0, 2, 100ms);
    store->answer(false);
    rank.note(reduction(1));
    const auto text =
        text_of<Timeout>(rank.diagnosis.agree(FailureKind::timeout, reduction(1), "", [] {}));
    test::expect_words(text, {"after 1s: all_reduce #1 (3.91 KiB, diagnosis_test.cc:",
                              ") is not complete (no further diagnosis: store error: it does not "
                              "answer)"});
    test::expect_words(
        rank.diagnosis.overdue(reduction(1), 30s),
        {"after 30s: all_reduce #1 (3.91 KiB, ", "store error: it does not answer)"});
    rank.calls.leave(rank.member, true);
  }
  EXPECT_LT(Clock::now() - begin, 3s);
  store->answer(true);  // lets the detached threads end
  std::this_thread::sleep_for(50ms);
}

TEST(CallWatch, FindsADifferenceThatNobodyWaitsFor) {
  for (int odd : {0, 2, 4}) {
    auto store = std::make_shared<WatchedStore>();
    auto ranks = ranks_on(store, 5);
    for (int rank = 0; rank < 5; ++rank) ranks[rank]->note(reduction(1, rank == odd ? 7 : 6));
    const auto deadline = Deadline::after(5s);
    std::string found;
    while (found.empty() && !deadline.passed()) {
      for (auto& rank : ranks) found += found.empty() ? rank->found() : "";
      std::this_thread::sleep_for(1ms);
    }
    test::expect_words(
        found, {"rank " + std::to_string(odd) + " called all_reduce #1 (sum, 7 x",
                "called all_reduce #1 (sum, 6 x float32, diagnosis_test.cc:", " where rank "});
  }
}

TEST(CallWatch, AsksNothingWhileNothingIsOpen) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 2);
  for (auto& rank : ranks) rank->note(reduction(1));
  for (auto& rank : ranks) rank->made->complete({{}, 1});
  std::this_thread::sleep_for(3 * CallWatch::period);
  const int asked = store->asked();
  std::this_thread::sleep_for(3 * CallWatch::period);
  EXPECT_EQ(store->asked(), asked);
  EXPECT_EQ(ranks[0]->found() + ranks[1]->found(), "");
}

TEST(CallWatch, AsksLittleHoweverManyCallsThereAre) {
  auto store = std::make_shared<WatchedStore>();
  auto ranks = ranks_on(store, 2);
  const int before = store->asked();
  const auto begin = Clock::now();
  const auto call = reduction(1);
  auto spent = Duration::zero();
  constexpr int calls = 20'000;
  for (std::uint64_t number = 1; number <= calls; ++number) {
    auto next = call;
    next.number = number;
    const auto noting = Clock::now();
    for (auto& rank : ranks) rank->note(next);
    spent += Clock::now() - noting;
  }
  std::printf("noting a call for the watch takes %lld ns\n",
              static_cast<long long>(spent.count() / (2 * calls)));
  const auto periods = (Clock::now() - begin) / CallWatch::period + 2;
  EXPECT_LE(store->asked() - before, 2 * 2 * periods);
  EXPECT_EQ(ranks[0]->found() + ranks[1]->found(), "");
}

}  // namespace
