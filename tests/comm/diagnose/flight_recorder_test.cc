// The flight recorder: which calls it keeps, their cost, and the files that it writes.
#include "comm/diagnose/flight_recorder.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "support/messages.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using namespace lockstep;
using namespace std::chrono_literals;
using diagnose::FlightRecorder;
using diagnose::Progress;

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

diagnose::FlightHeader header(std::string folder = {}) {
  return {.rank = 1, .size = 3, .backend = "shm", .folder = std::move(folder)};
}

CallInfo reduction_info(std::uint64_t number, std::string_view tag = {}) {
  return {.collective = Collective::all_reduce,
          .op = Op::average,
          .dtype = DType::float32,
          .elements = 5,
          .tag = tag,
          .where = std::source_location::current(),
          .id = {.number = number}};
}

TEST(FlightRecorder, KeepsTheLastCallsWithTheirProgress) {
  FlightRecorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  for (std::uint64_t call = 1; call <= 3000; ++call) {
    const auto entry = recorder.note_post(world, reduction_info(call, "a \"tag\"\n"));
    recorder.note_posted(entry);
    if (call < 3000) recorder.note_end(entry, Progress::done);
  }
  recorder.note_end(1, Progress::failed);
  const auto json = recorder.json();
  EXPECT_EQ(count(json, "\"progress\": \"failed\""), 0U) << "that entry is another's by now";
  EXPECT_EQ(count(json, "\"number\": "), FlightRecorder::kept);
  EXPECT_EQ(count(json, "\"progress\": \"done\""), FlightRecorder::kept - 1);
  EXPECT_EQ(count(json, "\"progress\": \"posted\""), 1U);
  EXPECT_EQ(count(json, "\"tag\": \"a \\\"tag\\\"\\n\""), FlightRecorder::kept);
  test::expect_words(json, {"\"call\": \"all_reduce\"", "\"sequence\": 3000", "\"op\": \"average\"",
                            "\"dtype\": \"float32\"", "\"elements\": 5", "\"bytes\": 20",
                            "\"calls_ever\": 3000", "recorder_test.cc:", "\"rank\": 1"});
}

TEST(FlightRecorder, ForgetsGroupsThatEndedOnceNoCallOfTheirsIsKept) {
  FlightRecorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto failed = recorder.add_group("failed", {0, 1});
  recorder.note_failure(failed, "what happened");
  recorder.end_group(failed);
  for (std::uint64_t made = 1; made <= 10'000; ++made) {
    const auto part = recorder.add_group("part " + std::to_string(made), {0, 1});
    std::ignore = recorder.note_post(part, reduction_info(made));
    std::ignore = recorder.note_post(world, reduction_info(made));
    recorder.end_group(part);
  }
  const auto json = recorder.json();
  EXPECT_LT(count(json, "\"name\": "), FlightRecorder::kept);
  EXPECT_EQ(count(json, "\"failure\": \"what happened\""), 1U);
  // The record keeps the group of every call that it keeps.
  for (std::uint64_t made = 10'000 - FlightRecorder::kept / 2 + 1; made <= 10'000; ++made)
    EXPECT_EQ(count(json, "\"name\": \"part " + std::to_string(made) + "\""), 1U);
}

TEST(FlightRecorder, TimesAreThoseOfTheClock) {
  FlightRecorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto time = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const auto before = time();
  std::ignore = recorder.note_post(world, reduction_info(1));
  const auto after = time();
  std::this_thread::sleep_for(50ms);
  const auto json = recorder.json();
  const auto posted = std::stod(json.substr(json.find("\"posted\": ") + 10));
  EXPECT_GT(posted, before - 0.005);
  EXPECT_LT(posted, after + 0.005);
}

TEST(FlightRecorder, CostsNanosecondsACall) {
  FlightRecorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1, 2});
  const auto call = reduction_info(1, "bucket 2");
  constexpr int calls = 200'000;
  auto best = Duration::max();
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    for (int number = 0; number < calls; ++number) {
      const auto entry = recorder.note_post(world, call);
      recorder.note_posted(entry);
      recorder.note_wait(entry);
      recorder.note_end(entry, Progress::done);
    }
    best = std::min<Duration>(best, (Clock::now() - begin) / calls);
  }
  print_to(stdout, "the flight recorder takes {} ns a call\n", best.count());
  // ThreadSanitizer turns each atomic store into a function call.
  EXPECT_LT(best, test::under_thread_sanitizer ? 20us : 500ns)
      << "a system call or an allocation would show";
}

TEST(FlightRecorder, WritesWhenAGroupFailsAndOncePerGroup) {
  test::TemporaryFolder folder;
  FlightRecorder recorder(header((folder.path() / "new").string()));
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

TEST(FlightRecorder, ItsFileIsReadByItsUserAlone) {
  test::TemporaryFolder folder;
  FlightRecorder recorder(header());
  const auto own = folder.path() / "new";
  const fs::path file = recorder.write(own.string());
  EXPECT_EQ(fs::status(own).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(FlightRecorder, ATagInAnyLanguageIsWrittenAsItIs) {
  FlightRecorder recorder(header());
  const auto world = recorder.add_group("world", {0, 1});
  std::ignore = recorder.note_post(world, reduction_info(1, "größe 重み"));
  std::ignore = recorder.note_post(world, reduction_info(2, "cut: \xc3"));
  test::expect_words(recorder.json(), {"\"tag\": \"größe 重み\"", "\"tag\": \"cut: \ufffd\""});
}

TEST(FlightRecorder, AFolderThatCannotBeWrittenLosesNothingElse) {
  FlightRecorder recorder(header("/proc/no/such/place"));
  recorder.note_failure(recorder.add_group("world", {0, 1}), "rank 0 was lost");
  EXPECT_THROW(static_cast<void>(recorder.write("/proc/no/such/place")), SystemError);
  FlightRecorder full(header("/dev/full"));
  full.note_failure(full.add_group("world", {0, 1}), "rank 0 was lost");
}

}  // namespace
