// The flight recorder: what it keeps, what it costs, what it writes and when.
#include "comm/diagnose/flight_recorder.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/comm/flight_record.h>

#include "comm/backend/recorded_backend.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "support/torch/injection.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using namespace lockstep;
using namespace std::chrono_literals;
using flight::Progress;
using flight::Recorder;

namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

flight::Header header(std::string folder = {}) {
  return {.rank = 1, .size = 3, .engine = "shm", .folder = std::move(folder)};
}

Call reduction_of(const at::Tensor& tensor, std::string_view tag = {}) {
  return {.collective = Collective::all_reduce,
          .op = Op::average,
          .input = tensor,
          .output = tensor,
          .tag = tag,
          .where = std::source_location::current()};
}

TEST(FlightRecorder, KeepsTheLastCallsWithTheirProgress) {
  Recorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto tensor = at::empty({5});
  for (std::uint64_t call = 1; call <= 3000; ++call) {
    const auto number = recorder.note_post(world, reduction_of(tensor, "a \"tag\"\n"), call);
    recorder.note_posted(number, call + 7);
    if (call < 3000) recorder.note_end(recorder.find(world, call + 7), Progress::done);
  }
  EXPECT_EQ(recorder.find(world, 3007), 3000U);
  EXPECT_EQ(recorder.find(world + 1, 3007), 0U);
  const auto json = recorder.json();
  EXPECT_EQ(count(json, "\"number\": "), Recorder::kept);
  EXPECT_EQ(count(json, "\"progress\": \"done\""), Recorder::kept - 1);
  EXPECT_EQ(count(json, "\"progress\": \"posted\""), 1U);
  EXPECT_EQ(count(json, "\"tag\": \"a \\\"tag\\\"\\u000a\""), Recorder::kept);
  test::expect_words(json, {"\"call\": \"all_reduce\", \"sequence\": 3000, \"op\": \"average\", "
                            "\"dtype\": \"Float\", \"elements\": 5, \"bytes\": 20",
                            "\"calls_ever\": 3000", "recorder_test.cc:", "\"rank\": 1"});
}

TEST(FlightRecorder, ForgetsGroupsThatEndedOnceNoCallOfTheirsIsKept) {
  Recorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto tensor = at::empty({5});
  const auto failed = recorder.add_group("failed", {0, 1});
  recorder.note_failure(failed, "what happened");
  recorder.end_group(failed);
  for (std::uint64_t made = 1; made <= 10'000; ++made) {
    const auto part = recorder.add_group("part " + std::to_string(made), {0, 1});
    std::ignore = recorder.note_post(part, reduction_of(tensor), made);
    std::ignore = recorder.note_post(world, reduction_of(tensor), made);
    recorder.end_group(part);
  }
  const auto json = recorder.json();
  EXPECT_LT(count(json, "\"name\": "), Recorder::kept);
  EXPECT_EQ(count(json, "\"failure\": \"what happened\""), 1U);
  // Every call that is kept is of a group that is kept.
  for (std::uint64_t made = 10'000 - Recorder::kept / 2 + 1; made <= 10'000; ++made)
    EXPECT_EQ(count(json, "\"name\": \"part " + std::to_string(made) + "\""), 1U);
}

TEST(FlightRecorder, TimesAreThoseOfTheClock) {
  Recorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto tensor = at::empty({5});
  const auto time = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const auto before = time();
  std::ignore = recorder.note_post(world, reduction_of(tensor), 1);
  const auto after = time();
  std::this_thread::sleep_for(50ms);
  const auto json = recorder.json();
  const auto posted = std::stod(json.substr(json.find("\"posted\": ") + 10));
  EXPECT_GT(posted, before - 0.005);
  EXPECT_LT(posted, after + 0.005);
}

TEST(FlightRecorder, CostsNanosecondsACall) {
  Recorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto tensor = at::empty({5});
  const auto call = reduction_of(tensor, "bucket 2");
  constexpr int calls = 200'000;
  auto best = Duration::max();
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    for (std::uint64_t number = 1; number <= calls; ++number) {
      const auto noted = recorder.note_post(world, call, number);
      recorder.note_posted(noted, number);
      const auto found = recorder.find(world, number);
      recorder.note_wait(found);
      recorder.note_end(found, Progress::done);
    }
    best = std::min<Duration>(best, (Clock::now() - begin) / calls);
  }
  print_to(stdout, "the flight recorder takes {} ns a call\n", best.count());
  EXPECT_LT(best, 500ns) << "a system call or an allocation would show";
}

TEST(FlightRecorder, WritesWhenAGroupFailsAndOncePerGroup) {
  test::TemporaryFolder folder;
  Recorder recorder(header((folder.path() / "new").string()));
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto part = recorder.add_group("world/split#1/0", {1, 2});
  const auto file = folder.path() / "new" / "flight-rank-1.json";
  recorder.note_failure(world, "rank 2 was lost");
  test::expect_words(content(file), {"\"failure\": \"rank 2 was lost\""});
  recorder.note_failure(world, "another text of the same group");
  EXPECT_EQ(content(file).find("another text"), std::string::npos);
  recorder.note_failure(part, "and its part");
  test::expect_words(content(file), {"rank 2 was lost", "and its part"});
}

TEST(FlightRecorder, AFolderThatCannotBeWrittenLosesNothingElse) {
  Recorder recorder(header("/proc/no/such/place"));
  recorder.note_failure(recorder.add_group("world", {0, 1}), "rank 0 was lost");
  EXPECT_THROW(static_cast<void>(recorder.write("/proc/no/such/place")), SystemError);
  Recorder full(header("/dev/full"));
  full.note_failure(full.add_group("world", {0, 1}), "rank 0 was lost");
}

TEST(FlightRecorder, IsWrittenByTheRanksOfADyingGroup) {
  for (auto engine : test::engines_of_processes()) {
    test::TemporaryFolder folder;
    test::MeetingPlace place(engine, 2);
    test::expect_ranks(2, [&](int rank) {
      ::setenv("LOCKSTEP_FLIGHT", folder.path().c_str(), 1);
      auto world = place.join(rank);
      auto pair = world.split(0);
      auto tensor = at::ones({100});
      pair.all_reduce(tensor, Op::sum, {.tag = "first"}).wait();
      EXPECT_THROW(pair.all_reduce(tensor, rank == 0 ? Op::sum : Op::max).wait(), Mismatch);
      world.barrier().wait();
    });
    for (int rank : {0, 1}) {
      const auto json = content(folder.path() / formatted("flight-rank-{}.json", rank));
      test::expect_words(json, {formatted("\"engine\": \"{}\"", test::name_of(engine)),
                                "\"tag\": \"first\"", "\"progress\": \"failed\"",
                                "\"name\": \"world/split#1/0\", \"members\": [0, 1], "
                                "\"failure\": \"rank 0 called all_reduce #2 (sum"});
    }
  }
}

TEST(FlightRecord, SaysTheSameOfARankThatLearnsWithItsNextCall) {
  if (!test::has(test::Engine::gloo)) GTEST_SKIP() << "no Gloo in this build";
  test::TemporaryFolder folder;
  test::MeetingPlace place(test::Engine::gloo, 2);
  test::expect_ranks(2, [&](int rank) {
    ::setenv("LOCKSTEP_FLIGHT", folder.path().c_str(), 1);
    auto world = place.join(rank);
    if (rank == 1) world.abort("enough");
    auto text = test::message_of<Aborted>([&] { world.barrier().wait(); });
    EXPECT_EQ(text.find("which is dead") != std::string::npos, rank == 1) << text;
  });
  for (int rank : {0, 1}) {
    test::expect_words(content(folder.path() / formatted("flight-rank-{}.json", rank)),
                       {"\"failure\": \"rank 1 ended the group: enough\""});
  }
}

TEST(FlightRecord, IsWrittenWhenAskedFor) {
  test::TemporaryFolder folder;
  test::MeetingPlace place(test::Engine::shm, 2);
  test::expect_ranks(2, [&](int rank) {
    ::unsetenv("LOCKSTEP_FLIGHT");
    auto world = place.join(rank);
    auto part = world.split(rank);
    world.barrier({.tag = "here"}).wait();
    EXPECT_THROW(write_flight_record(world), InvalidArgument);
    EXPECT_THROW(write_flight_record(part, folder.path()), InvalidArgument) << "one rank";
    const auto path = write_flight_record(world, folder.path());
    EXPECT_EQ(path, (folder.path() / formatted("flight-rank-{}.json", rank)).string());
    test::expect_words(content(path), {"\"tag\": \"here\"", "\"progress\": \"done\""});
    world.barrier().wait();
  });
}

TEST(FlightRecord, IsWrittenByARankThatAnExceptionTakesAway) {
  test::TemporaryFolder folder;
  test::MeetingPlace place(test::Engine::shm, 2);
  test::expect_ranks(2, [&](int rank) {
    ::setenv("LOCKSTEP_FLIGHT", folder.path().c_str(), 1);
    try {
      auto world = place.join(rank);
      world.barrier().wait();
      if (rank == 1) throw std::runtime_error("the loss is not a number");
      EXPECT_THROW(world.barrier().wait(), PeerLost);
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the loss is not a number");
    }
  });
  test::expect_words(content(folder.path() / "flight-rank-1.json"),
                     {"an exception ended the rank's part in the group"});
}

}  // namespace
