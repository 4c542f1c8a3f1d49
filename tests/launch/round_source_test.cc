// The only round of a run on one node without restarts: it contacts no agent and stores nothing.
#include "launch/round_source.h"

#include <gtest/gtest.h>

#include <poll.h>

#include <vector>

#include <lockstep/store/open.h>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using Kind = RoundEvent::Kind;

RoundEvent only_event(OneRound& round) {
  pollfd readable{.fd = round.descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&readable, 1, 0), 1);
  std::vector<RoundEvent> events = round.take_events();
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ(::poll(&readable, 1, 0), 0);
  return events.front();
}

TEST(OneRound, BeginsWithWhatIsOffered) {
  OneRound round(serve_store());
  EXPECT_EQ(only_event(round).kind, Kind::rendezvous);
  JoinRequest request = round.empty_join_request();
  request.workers = {{"0.0", false}, {"0.1", false}};
  round.request_join(0, request);
  const RoundEvent begins = only_event(round);
  EXPECT_EQ(begins.kind, Kind::begin);
  EXPECT_EQ(begins.plan.ranks(), 2);
  EXPECT_EQ(begins.plan.master_address, "127.0.0.1");
  EXPECT_EQ(begins.plan.master_port, request.port);
  round.wait_for_the_others(Deadline::never(), [] { return false; });
}

TEST(OneRound, EndsWithTheFirstThingThatIsSaid) {
  const RunResult failed{.kind = RunResult::Kind::failed, .exit_code = 3, .rank = 1};
  const RunResult stopped{.kind = RunResult::Kind::stopped, .signal = 15};
  const auto result_of = [](const auto& say) {
    OneRound round(serve_store());
    static_cast<void>(round.take_events());
    say(round);
    RoundEvent over = only_event(round);
    EXPECT_EQ(over.kind, Kind::over);
    round.done(0);
    EXPECT_TRUE(round.take_events().empty());
    return over.result;
  };
  EXPECT_EQ(result_of([&](OneRound& round) { round.fail({}, failed); }), failed);
  EXPECT_EQ(result_of([&](OneRound& round) { round.stop(stopped, false); }), stopped);
  EXPECT_EQ(result_of([&](OneRound& round) { round.end_run(failed); }), failed);
  EXPECT_EQ(result_of([](OneRound& round) { round.done(0); }), RunResult{});
}

TEST(OneRound, WritesNothingIntoItsStore) {
  OneRound round(serve_store());
  JoinRequest request = round.empty_join_request();
  request.workers = {{"0.0", false}};
  round.request_join(0, request);
  round.done(0);
  const auto store = open_store(round.store().address, round.store().secret, 20s);
  EXPECT_TRUE(store->keys("").empty());
}

}  // namespace
}  // namespace lockstep::launch
