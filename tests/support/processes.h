// Ranks as processes, forked from the warm test program, so that a rank starts in a millisecond
// instead of the time that LibTorch takes to load.
//
//   test::expect_ranks(3, [&](int rank) { EXPECT_EQ(...); });   // every rank must succeed
//
//   test::RankProcesses ranks(3, body);                         // or step by step, for failures
//   ranks.kill(1, SIGKILL);
//   for (auto& result : ranks.wait(20s)) ...
//
// The body must not need threads of the parent, but may start its own. In a rank, failed EXPECTs
// and exceptions are printed with the rank's number and set its exit code to 1; the rank never
// returns into gtest. Ranks end with the thread that started them.
#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <vector>

#include <sys/types.h>

namespace lockstep::test {

struct RankResult {
  int exit_code = -1;    // -1 if a signal ended the rank
  int signal = 0;        // 0 if the rank exited by itself
  bool overdue = false;  // killed because the deadline passed
  [[nodiscard]] bool ok() const { return exit_code == 0; }
};
std::ostream& operator<<(std::ostream& out, const RankResult& result);

using RankBody = std::function<void(int rank)>;

class RankProcesses {
 public:
  RankProcesses(int count, const RankBody& body);
  ~RankProcesses();  // kills and reaps the ranks that wait() has not returned
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  [[nodiscard]] int count() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] pid_t pid(int rank) const { return ranks_.at(rank).pid; }
  void kill(int rank, int signal) const;
  // Blocks until that rank has ended; kills it after `limit`.
  RankResult wait(int rank, std::chrono::milliseconds limit);
  // Same for all ranks, with one common limit.
  std::vector<RankResult> wait(std::chrono::milliseconds limit);

 private:
  struct Rank {
    pid_t pid = -1;
    bool collected = false;
    RankResult result;
  };
  std::vector<Rank> ranks_;
};

// Shorter than the watchdog's limit, so that ranks that hang are named.
inline constexpr std::chrono::seconds rank_limit{40};

// Runs body(rank) in `count` processes and returns their results.
std::vector<RankResult> run_ranks(int count, const RankBody& body,
                                  std::chrono::milliseconds limit = rank_limit);
// Same, and adds a test failure for each rank that did not succeed.
void expect_ranks(int count, const RankBody& body, std::chrono::milliseconds limit = rank_limit);

}  // namespace lockstep::test
