// Injects every kind of rank failure repeatedly on the backends that join processes: the survivors
// must get the right error, naming the right rank, in time.
//
// LOCKSTEP_INJECTIONS sets the number of repetitions (default 3), LOCKSTEP_SEED the random seed.
// The tests of mpi are separate ctest entries, so that they run in parallel.
#include "support/torch/injection.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "support/torch/mpirun_world.h"
#include "sys/heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <tuple>
#include <vector>

using namespace lockstep;
using test::BackendKind;
using test::Misdeed;
using test::Target;

namespace {

struct Tally {
  int tried = 0;
  int named_rightly = 0;
  std::vector<double> seconds;

  void add(const test::Outcome& outcome, std::int64_t seed) {
    EXPECT_TRUE(outcome.named_rightly) << outcome.problem << " [LOCKSTEP_SEED=" << seed << "]";
    ++tried;
    named_rightly += outcome.named_rightly ? 1 : 0;
    seconds.insert(seconds.end(), outcome.seconds.begin(), outcome.seconds.end());
  }
  [[nodiscard]] double quantile(double share) const {
    auto sorted = seconds;
    std::ranges::sort(sorted);
    return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(share * (sorted.size() - 1))];
  }
  [[nodiscard]] std::string text() const {
    return formatted("{} tried, {} named rightly, to the error p50 {:.3f} s, max {:.3f} s", tried,
                     named_rightly, quantile(0.5), quantile(1));
  }
};

// The tally of all tests so far, printed after the last one.
Tally& total() {
  static Tally tally;
  return tally;
}

test::MpirunWorlds& worlds() {
  static test::MpirunWorlds all;
  return all;
}

class Injections : public testing::TestWithParam<std::tuple<Target, Misdeed>> {
 public:
  static void TearDownTestSuite() {
    worlds().end();
    print_to(stdout, "all injections: {} tried, {} named rightly\n", total().tried,
             total().named_rightly);
  }

 protected:
  [[nodiscard]] const Target& target() const { return std::get<0>(GetParam()); }
  [[nodiscard]] Misdeed misdeed() const { return std::get<1>(GetParam()); }

  [[nodiscard]] bool waits() const {
    return misdeed() == Misdeed::stop || misdeed() == Misdeed::loop;
  }
  [[nodiscard]] test::Injection injection_of(std::int64_t number) const {
    return {.target = target(),
            .misdeed = misdeed(),
            .seed = combine_fingerprints(static_cast<std::uint64_t>(number),
                                         static_cast<std::uint64_t>(misdeed()))};
  }

  Tally inject_all() {
    const auto times = environment::integer("LOCKSTEP_INJECTIONS", 1, 100'000).value_or(3);
    const auto begin =
        environment::integer("LOCKSTEP_SEED")
            .value_or(std::chrono::system_clock::now().time_since_epoch().count() % 1'000'000);
    // Injections that wait for a deadline run concurrently, if each has its own processes.
    const std::int64_t together = waits() && target().backend != BackendKind::mpi ? 3 : 1;
    Tally tally;
    for (std::int64_t time = 0; time < times; time += together) {
      std::vector<test::RunningInjection> running;
      for (std::int64_t one = time; one < std::min(times, time + together); ++one)
        running.emplace_back(injection_of(begin + one), worlds());
      for (auto& one : running) tally.add(one.finish(), begin + time);
    }
    print_to(stdout, "{} on {} from seed {}: {}\n", test::name_of(misdeed()), target().name(),
             begin, tally.text());
    total().tried += tally.tried;
    total().named_rightly += tally.named_rightly;
    return tally;
  }
};

TEST_P(Injections, AreNamedInTime) {
  const auto tally = inject_all();
  // Ranks under a sanitizer need more time to report, because they share processors.
  const double longer = sys::malloc_is_watched ? 2 : 1;
  const bool ends = misdeed() == Misdeed::kill || misdeed() == Misdeed::exit;
  if (ends && target().backend == BackendKind::shm)
    EXPECT_LT(tally.quantile(0.5), longer * 0.05) << tally.text();
  EXPECT_LT(tally.quantile(0.5), longer * (waits() ? 2.0 : 1.0)) << tally.text();
}

INSTANTIATE_TEST_SUITE_P(All, Injections,
                         testing::Combine(testing::ValuesIn(test::injection_targets()),
                                          testing::ValuesIn(test::all_misdeeds())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name() + "_" +
                                  test::name_of(std::get<1>(info.param));
                         });

}  // namespace
