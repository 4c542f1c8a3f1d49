// `lockstep report hang` on records that are damaged or malicious: it explains or refuses them in
// bounded time, and prints no terminal control sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/command.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

namespace lockstep::apps {
namespace {

using namespace std::chrono_literals;
using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;

std::string some_record(int rank, Random& random) {
  const std::vector<std::string> progress{"posting", "posted", "waiting",
                                          "done",    "failed", "refused"};
  std::string calls;
  for (std::size_t number = 1; number <= 3; ++number) {
    const bool message = one_in(random, 3);
    calls += std::string(number > 1 ? ", " : "") + "{\"number\": " + std::to_string(number) +
             ", \"group\": 0, \"call\": \"" +
             (message ? "send\", \"peer\": 1" : "all_reduce\", \"root\": -1") +
             ", \"sequence\": " + std::to_string(number) +
             ", \"op\": \"sum\", \"dtype\": \"Float\", \"elements\": 7, \"tag\": \"a\\nb\", "
             "\"posted\": 1000.5, \"ended\": 1001.5, \"progress\": \"" +
             progress[below(random, progress.size())] + "\", \"where\": \"train.cc:8\"}";
  }
  return "{\"lockstep_flight_record\": 1, \"rank\": " + std::to_string(rank) +
         ", \"size\": 3, \"backend\": \"shm\", \"host\": \"a\", \"pid\": 7, \"written\": 1020.0, "
         "\"calls_ever\": 3, \"groups\": [{\"name\": \"world\", \"members\": [0, 1, 2], "
         "\"failure\": \"x\\u001b[31m\"}], \"calls\": [" +
         calls + "]}";
}

// Changes some content; the record stays valid JSON.
std::string with_other_words(std::string record, Random& random) {
  static const std::vector<std::pair<std::string, std::string>> changes{
      {"\"size\": 3", "\"size\": 2147483647"},
      {"\"size\": 3", "\"size\": 1e300"},
      {"1020.0", "1e308"},
      {"1000.5", "-1e308"},
      {"1001.5", "null"},
      {"[0, 1, 2]", "[]"},
      {"[0, 1, 2]", "[2147483647, -2147483648, 99999999999999]"},
      {"\"group\": 0", "\"group\": -1"},
      {"\"group\": 0", "\"group\": 18446744073709551615"},
      {"\"sequence\": 1", "\"sequence\": 18446744073709551615"},
      {"\"sequence\": 2", "\"sequence\": 0"},
      {"\"peer\": 1", "\"peer\": -2147483648"},
      {"\"root\": -1", "\"root\": \"x\""},
      {"record\": 1", "record\": " + std::string(100'000, '[') + std::string(100'000, ']')},
      {"\"world\"", "{}"},
      {"\"world\"", "\"\xc2\x9b\u202e\""},
      {"\"rank\": 1", "\"rank\": 4294967297"},
      {"}", std::string("}\0", 2)},
      {"\"calls\": [", "\"calls\": [[], "},
  };
  const auto& [from, to] = changes[below(random, changes.size())];
  if (auto place = record.find(from); place != std::string::npos)
    record.replace(place, from.size(), to);
  return record;
}

TEST(ReportFuzz, RecordsAreExplainedOrRefused) {
  const test::TemporaryFolder folder;
  std::uint64_t explained = 0, refused = 0;
  FuzzRounds rounds("flight records", 20);
  while (rounds.next()) {
    Random& random = rounds.random();
    std::vector<std::string> words{"report", "hang"};
    for (int rank = 0; rank < 2; ++rank) {
      std::string record = some_record(rank, random);
      if (one_in(random, 2)) record = with_other_words(record, random);
      if (one_in(random, 3)) record = mutated(record, random);
      words.push_back((folder.path() / ("rank-" + std::to_string(rank))).string());
      std::ofstream(words.back(), std::ios::binary) << record;
    }
    const auto start = Clock::now();
    const Finished finished = lockstep_command(words);
    EXPECT_LT(Clock::now() - start, 10s);
    ASSERT_EQ(finished.status.signal, 0) << finished.error;
    EXPECT_TRUE(finished.status.code == 0 || finished.status.code == 1) << finished.error;
    for (const std::string& printed : {finished.output, finished.error}) {
      auto is_control = [](unsigned char c) { return (c < 32 && c != '\n') || c == 127; };
      EXPECT_EQ(std::ranges::count_if(printed, is_control), 0) << printed;
      EXPECT_EQ(printed.find("\xc2\x9b"), std::string::npos) << printed;  // C1
    }
    (finished.status.code == 0 ? explained : refused) += 1;
  }
  if (!rounds.enough()) return;
  EXPECT_GT(explained, 0u);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace lockstep::apps
