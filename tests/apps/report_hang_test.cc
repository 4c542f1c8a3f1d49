// `lockstep report hang` on records of one incident each, and on files that are not records.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "apps/command.h"
#include "apps/shell.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

// Makes one call of a record, posted at second `at` of the incident.
std::string call(int number, const std::string& words, int sequence, double at,
                 const std::string& progress, int group = 0) {
  std::string text =
      "{\"number\": " + std::to_string(number) + ", \"group\": " + std::to_string(group) +
      ", \"sequence\": " + std::to_string(sequence) + ", \"posted\": " + std::to_string(1000 + at) +
      ", \"progress\": \"" + progress + "\", \"where\": \"train.cc:8\", " + words + "}";
  if (progress == "done")
    text.insert(text.size() - 1, ", \"ended\": " + std::to_string(1000.1 + at));
  return text;
}

std::string reduction(const std::string& tag, int elements = 4) {
  return "\"call\": \"all_reduce\", \"op\": \"sum\", \"dtype\": \"Float\", \"tag\": \"" + tag +
         "\", \"elements\": " + std::to_string(elements);
}

std::string message(const std::string& kind, int peer) {
  return "\"call\": \"" + kind + "\", \"peer\": " + std::to_string(peer) +
         ", \"dtype\": \"Float\", \"elements\": 7";
}

struct HangReport : testing::Test {
  void write(int rank, int size, const std::vector<std::string>& calls, bool streams = false) {
    std::string members = "0";
    for (int other = 1; other < size; ++other) members += ", " + std::to_string(other);
    std::string all;
    for (const auto& one : calls) all += (all.empty() ? "" : ", ") + one;
    write("flight-rank-" + std::to_string(rank) + ".json",
          "{\"lockstep_flight_record\": 1, \"rank\": " + std::to_string(rank) +
              ", \"size\": " + std::to_string(size) + (streams ? ", \"streams\": true" : "") +
              ", \"backend\": \"shm\", \"host\": \"here\", \"pid\": 7, \"written\": 1020.0, "
              "\"groups\": [{\"name\": \"world\", \"members\": [" +
              members + "]}, {\"name\": \"pair\", \"members\": [0, 1]}], \"calls\": [" + all +
              "]}");
  }
  void write(const std::string& name, const std::string& text) {
    files.push_back((folder.path() / name).string());
    std::ofstream(files.back()) << text;
  }
  Finished report() {
    std::vector<std::string> words{"report", "hang"};
    words.insert(words.end(), files.begin(), files.end());
    return lockstep_command(words);
  }
  void expect_lines(const std::vector<std::string>& lines) {
    const Finished finished = report();
    EXPECT_EQ(finished.status.code, 0) << finished.error;
    for (const auto& line : lines)
      EXPECT_NE(finished.output.find(line + "\n"), std::string::npos) << "no '" << line << "' in:\n"
                                                                      << finished.output;
  }

  test::TemporaryFolder folder;
  std::vector<std::string> files;
};

TEST_F(HangReport, NamesThePeersOfAPartByTheirNumbersInTheWorld) {
  write("flight-rank-3.json",
        "{\"lockstep_flight_record\": 1, \"rank\": 3, \"size\": 4, \"backend\": \"shm\", "
        "\"host\": \"here\", \"pid\": 7, \"written\": 1020.0, \"groups\": [{\"name\": "
        "\"world/split#1/1\", \"members\": [1, 3]}], \"calls\": [" +
            call(1, message("recv", 0), 1, 5, "waiting") + "]}");
  const Finished finished = report();
  EXPECT_NE(finished.output.find("rank 3 waits in recv #1 from rank 0 (rank 1 of the world, "),
            std::string::npos)
      << finished.output << finished.error;
}

TEST_F(HangReport, SaysWhoWaitsAndWhoNeverCame) {
  write(0, 3, {call(1, reduction("a"), 1, 1, "done"), call(2, reduction("b"), 2, 5, "waiting")});
  write(1, 3, {call(1, reduction("a"), 1, 1, "done"), call(2, reduction("b"), 2, 6, "failed")});
  write(2, 3, {call(1, reduction("a"), 1, 1, "done")});
  expect_lines(
      {"group world: ranks 0, 1 wait in all_reduce #2 (b, sum, 4 x Float, train.cc:8) for 15s; "
       "rank 2 never called it: its last call, all_reduce #1 (a, sum, 4 x Float, train.cc:8), "
       "ended 18.9s before",
       "group world: the last call that all ranks completed: all_reduce #1 (a, sum, 4 x Float, "
       "train.cc:8), 18.9s before"});
}

TEST_F(HangReport, SaysInWhichOtherGroupTheMissingRankIs) {
  write(0, 2, {call(1, reduction("a"), 1, 5, "waiting")});
  write(1, 2, {call(1, reduction("x"), 1, 4, "waiting", 1)});
  expect_lines(
      {"group world: rank 0 waits in all_reduce #1 (a, sum, 4 x Float, train.cc:8) for 15s; rank 1 "
       "never called it: it is in all_reduce #1 (x, sum, 4 x Float, train.cc:8) of group pair, for "
       "16s",
       "group pair: rank 1 waits in all_reduce #1 (x, sum, 4 x Float, train.cc:8) for 16s; rank 0 "
       "never called it: it is in all_reduce #1 (a, sum, 4 x Float, train.cc:8) of group world, "
       "for 15s"});
}

TEST_F(HangReport, SaysWhereCallsFirstDiffer) {
  write(0, 2,
        {call(1, reduction("a"), 1, 1, "done"), call(2, reduction("b"), 2, 2, "done"),
         call(3, reduction("c"), 3, 3, "waiting")});
  write(1, 2, {call(1, reduction("a"), 1, 1, "done"), call(2, reduction("c"), 2, 2, "waiting")});
  expect_lines(
      {"group world: the first difference is at #2: rank 0 called all_reduce #2 (b, sum, 4 x "
       "Float, train.cc:8); rank 1 called all_reduce #2 (c, sum, 4 x Float, train.cc:8); it seems "
       "that rank 1 skipped a call, or that rank 0 made an extra one"});
}

TEST_F(HangReport, SaysWhichMessageNobodySent) {
  write(0, 2,
        {call(1, message("send", 1), 1, 1, "done"), call(2, reduction("a"), 1, 2, "waiting")});
  write(1, 2,
        {call(1, message("recv", 0), 1, 1, "done"), call(2, message("recv", 0), 2, 2, "waiting")});
  expect_lines(
      {"group world: rank 1 waits in recv #2 from rank 0 (7 x Float, train.cc:8) for 18s; rank 0 "
       "never called send for it: it is in all_reduce #1 (a, sum, 4 x Float, train.cc:8), for "
       "18s"});
}

TEST_F(HangReport, SaysThatCallsOfTwoGroupsWerePostedInOppositeOrders) {
  const auto both_orders = [&](bool streams) {
    files.clear();
    write(0, 2,
          {call(1, reduction("a"), 1, 0, "done"), call(2, reduction("b"), 1, 1, "done", 1),
           call(3, reduction("a"), 2, 2, "waiting"), call(4, reduction("b"), 2, 3, "posted", 1)},
          streams);
    write(1, 2,
          {call(1, reduction("a"), 1, 0, "done"), call(2, reduction("b"), 1, 1, "done", 1),
           call(3, reduction("b"), 2, 2, "waiting", 1), call(4, reduction("a"), 2, 3, "posted")},
          streams);
  };
  both_orders(true);
  expect_lines(
      {"rank 0 posted all_reduce #2 (a, sum, 4 x Float, train.cc:8) of group world before "
       "all_reduce #2 (b, sum, 4 x Float, train.cc:8) of group pair, and rank 1 after it: on a "
       "device they can wait for each other forever, so all ranks must post the calls of all "
       "groups in one order"});
  both_orders(false);  // host threads complete the calls of each group
  EXPECT_EQ(report().output.find("posted all_reduce"), std::string::npos);
}

TEST_F(HangReport, SaysThatNothingIsOpen) {
  write(0, 2, {call(1, reduction("a"), 1, 1, "done"), call(2, reduction("b"), 2, 2, "posted")});
  write(1, 2, {call(1, reduction("a"), 1, 1, "done"), call(2, reduction("b"), 2, 2, "done")});
  expect_lines(
      {"nothing is open: every recorded call was completed, and the ranks made the same calls"});
}

TEST_F(HangReport, FilesThatAreNoRecordsAreOneLineEachAndTheOthersAreRead) {
  write(0, 2, {call(1, reduction("a"), 1, 1, "waiting")});
  write("cut.json", "{\"lockstep_flight_record\": 1, \"rank\": 1, \"si");
  write("foreign.json", "{\"a\": 1}");
  write("words.txt", "epoch 1: loss 0.3\n");
  write("empty.json", "");
  write("newer.json", "{\"lockstep_flight_record\": 2}");
  write("odd.json", "{\"lockstep_flight_record\": 1, \"rank\": \"one\"}");
  files.push_back((folder.path() / "absent.json").string());
  const Finished finished = report();
  EXPECT_EQ(finished.status.code, 1);
  EXPECT_EQ(std::count(finished.error.begin(), finished.error.end(), '\n'), 7) << finished.error;
  for (const char* words :
       {"cut.json: the flight record is cut short: its 44 bytes",
        "foreign.json: not a flight record", "words.txt: not a flight record",
        "empty.json: not a flight record",
        "newer.json: a flight record of version 2; this program reads version 1",
        "odd.json: invalid flight record", "absent.json: No such file or directory"})
    EXPECT_NE(finished.error.find(words), std::string::npos) << words << " in " << finished.error;
  EXPECT_NE(finished.output.find("rank 0 waits in all_reduce #1"), std::string::npos)
      << finished.output;
}

// Makes a record of rank 0 of 2 with one of its values replaced.
std::string record_with(const std::string& from, const std::string& to) {
  std::string text =
      R"({"lockstep_flight_record": 1, "rank": 0, "size": 2, "backend": "shm", "host": "here",)"
      R"( "written": 1020.0, "groups": [{"name": "world", "members": [0, 1]}], "calls": [{)"
      R"("number": 1, "group": 0, "sequence": 1, "call": "broadcast", "root": 0, "dtype": "Float",)"
      R"( "elements": 7, "tag": "", "posted": 1000.0, "progress": "waiting", "where": "a.cc:8"}]})";
  const std::size_t place = text.find(from);
  return place == std::string::npos ? std::string() : text.replace(place, from.size(), to);
}

TEST_F(HangReport, NumbersBeyondTheirRangeAreRefused) {
  const std::vector<std::pair<std::string, std::string>> changes{
      {"\"rank\": 0", "\"rank\": 1099511627776"},
      {"\"rank\": 0", "\"rank\": 2"},
      {"\"rank\": 0", "\"rank\": 0.5"},
      {"\"rank\": 0", "\"rank\": -1"},
      {"\"size\": 2", "\"size\": 4294967298"},
      {"[0, 1]", "[0, 4294967296]"},
      {"[0, 1]", "[0, 2]"},
      {"\"group\": 0", "\"group\": 1"},
      {"\"group\": 0", "\"group\": 0.9"},
      {"\"sequence\": 1", "\"sequence\": -1"},
      {"\"root\": 0", "\"root\": 4294967296"},
      {"\"elements\": 7", "\"elements\": 7.5"},
      {"\"posted\": 1000.0", "\"posted\": 1e11"},
      {"1020.0", "1e10"},
      {"\"tag\": \"\"", "\"tag\": 7"},
      {"record\": 1", "record\": 1.0"},
      {"}]}", std::string("}]}\0", 4)},
  };
  for (const auto& [from, to] : changes) {
    files.clear();
    write("odd.json", record_with(from, to));
    const Finished finished = report();
    EXPECT_EQ(finished.status.code, 1) << to;
    EXPECT_EQ(finished.output, "") << to;
    EXPECT_EQ(std::count(finished.error.begin(), finished.error.end(), '\n'), 1) << finished.error;
  }
  files.clear();
  write("good.json", record_with("1020.0", "9e9"));
  EXPECT_EQ(report().status.code, 0) << report().error;
}

TEST_F(HangReport, ControlCharactersAreShownAndNotSent) {
  write("rank.json", record_with("\"tag\": \"\"", R"("tag": "\u009b31m\u001b[0m\u202e\n")"));
  const Finished finished = report();
  EXPECT_NE(finished.output.find(R"(\u{9b}31m\x1b[0m\u{202e}\n)"), std::string::npos)
      << finished.output;
  EXPECT_EQ(finished.output.find("\xc2\x9b"), std::string::npos);
}

TEST_F(HangReport, WhatIsNoFileIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  files = {(folder.path() / "pipe").string(), "/dev/zero", folder.path().string()};
  const Finished finished = report();
  EXPECT_EQ(finished.status.code, 1);
  for (const char* words :
       {"pipe: expected a file, found a named pipe",
        "reading /dev/zero: expected a file, found a device", "expected a file, found a folder"})
    EXPECT_NE(finished.error.find(words), std::string::npos) << finished.error;
}

TEST_F(HangReport, ManyGroupsTakeLinearTime) {
  constexpr int groups = 40'000;
  for (int rank = 0; rank < 2; ++rank) {
    std::string text =
        "{\"lockstep_flight_record\": 1, \"rank\": " + std::to_string(rank) +
        ", \"size\": 2, \"backend\": \"shm\", \"host\": \"a\", \"written\": 1020.0, \"groups\": [";
    for (int i = 0; i < groups; ++i)
      text += (i > 0 ? ", " : "") + std::string("{\"name\": \"group ") + std::to_string(i) +
              "\", \"members\": [0, 1], \"failure\": \"lost\"}";
    text += "], \"calls\": [";
    for (int i = 0; i < groups; ++i)
      text += (i > 0 ? ", " : "") + call(i + 1, reduction("a"), 1, 1, "waiting", i);
    write("rank-" + std::to_string(rank), text + "]}");
  }
  const auto start = Clock::now();
  const Finished finished = report();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));  // a quadratic algorithm took 90 s
  EXPECT_EQ(finished.status.code, 0) << finished.error;
  EXPECT_EQ(std::count(finished.output.begin(), finished.output.end(), '\n'), 3 * groups + 1);
}

// The memory of the program is limited: building a tree of all these lists would exceed it.
TEST_F(HangReport, DeepAndLargeTextsTakeLittleMemory) {
  write("deep.json", "{\"lockstep_flight_record\": " + std::string(20'000'000, '['));
  write("wide.json", "{\"lockstep_flight_record\": [" + std::string(40'000'000, ',') + "]}");
  std::string many = "{\"lockstep_flight_record\": [0";
  for (int i = 0; i < 20'000'000; ++i) many += ",0";
  write("many.json", many + "]}");
  std::ofstream(files.emplace_back((folder.path() / "large.json").string())) << "{";
  std::filesystem::resize_file(files.back(), std::uintmax_t{1} << 40);
  std::string line = "ulimit -v 1000000; " + lockstep_program() + " report hang";
  for (const std::string& file : files) line += " " + file;
  const test::ShellResult result = test::shell(line + " 2>&1");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_EQ(test::count_lines(result.output), 4) << result.output;
  for (const char* words : {"deep.json: not a flight record: it nests too deeply or holds too much",
                            "many.json: not a flight record: it nests too deeply or holds too much",
                            "large.json: expected at most 64 MiB, found 1 TiB"})
    EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
}

TEST_F(HangReport, RecordsOfTwoRunsAreRefused) {
  write(0, 2, {});
  write(1, 3, {});
  EXPECT_EQ(report().status.code, 1);
  EXPECT_NE(report().error.find("is of a run with 2 ranks"), std::string::npos) << report().error;
  files.pop_back();
  files.push_back(files.front());
  EXPECT_NE(report().error.find("two records are of rank 0"), std::string::npos) << report().error;
}

TEST_F(HangReport, MistakesInTheCommandAreCode2) {
  EXPECT_EQ(lockstep_command({"report", "hang"}).status.code, 2);
  EXPECT_EQ(lockstep_command({"report", "hnag"}).status.code, 2);
  const Finished help = lockstep_command({"report", "--help"});
  EXPECT_EQ(help.status.code, 0);
  EXPECT_NE(help.output.find("lockstep report hang FILE..."), std::string::npos);
}

}  // namespace
}  // namespace lockstep::apps
