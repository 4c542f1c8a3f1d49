// Results are bitwise equal at any timing, for every kind of memory. Also tests ranks that stop or
// die in the middle of a segment.
#include "comm/backends/shm/ranks.h"
#include "comm/kernels/combine.h"
#include "support/messages.h"
#include "support/sanitizers.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>

#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::vector<float> random_values(int rank, std::size_t count, int seed) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + seed));
  std::normal_distribution<float> normal(0, 1000);
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

float in_tree(const std::vector<std::vector<float>>& values, std::size_t i, int low, int high) {
  if (high - low == 1) return values[low][i];
  int middle = low + left_branch(high - low);
  volatile float sum = in_tree(values, i, low, middle) + in_tree(values, i, middle, high);
  return sum;
}

std::vector<float> tree_sum(int ranks, std::size_t count, int seed) {
  std::vector<std::vector<float>> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(random_values(rank, count, seed));
  std::vector<float> sum(count);
  for (std::size_t i = 0; i < count; ++i) sum[i] = in_tree(values, i, 0, ranks);
  return sum;
}

bool same_bits(const float* a, const std::vector<float>& b) {
  return std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

void pause_randomly(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    case 1:
      return std::this_thread::yield();
    default:
      return;
  }
}

void expect_same_bits(Endpoint& endpoint) {
  GroupMember& group = endpoint.world();
  std::mt19937 late(static_cast<unsigned>(group.rank()) + 7);
  for (std::size_t count : {3, 200, 3001, 70'001}) {
    auto expected = tree_sum(group.size(), count, static_cast<int>(count));
    auto mine = random_values(group.rank(), count, static_cast<int>(count));
    ArenaArray<float> inside(endpoint, count);
    for (int round = 0; round < 8; ++round) {
      auto outside = mine;
      std::copy(mine.begin(), mine.end(), inside.data());
      pause_randomly(late);
      auto first = call(Collective::all_reduce, outside, outside);
      auto ticket = post(group, std::move(first));
      pause_randomly(late);
      run(group, call(Collective::all_reduce, inside, inside));
      pause_randomly(late);
      group.wait(ticket);
      ASSERT_TRUE(same_bits(inside.data(), expected)) << count << " in the arena";
      ASSERT_TRUE(same_bits(outside.data(), expected)) << count << " outside";
    }
  }
}

// Ranks run ahead of each other as far as the channel allows, through many rounds of its ring.
void exchange_far_ahead(Endpoint& endpoint) {
  GroupMember& group = endpoint.world();
  struct Exchange {
    std::vector<std::int64_t> sends, expects;
    std::vector<float> out, in;
    CallId ticket;
  };
  std::mt19937 late(static_cast<unsigned>(group.rank()) + 11);
  std::deque<Exchange> open;
  auto finish_one = [&] {
    group.wait(open.front().ticket);
    ASSERT_TRUE(std::ranges::all_of(open.front().in, [](float value) { return value == 1; }));
    open.pop_front();
  };
  for (int operation = 0; operation < 1500; ++operation) {
    auto& exchange = open.emplace_back();
    auto elements = [&](int from, int to) { return (from + 2 * to + operation) % 5; };
    for (int other = 0; other < group.size(); ++other) {
      exchange.sends.push_back(elements(group.rank(), other));
      exchange.expects.push_back(elements(other, group.rank()));
    }
    auto sum = [](const auto& counts) { return std::accumulate(counts.begin(), counts.end(), 0); };
    exchange.out.assign(sum(exchange.sends), 1);
    exchange.in.assign(sum(exchange.expects), 0);
    auto posting = call(Collective::all_to_all, exchange.out, exchange.in);
    posting.input_counts = exchange.sends;
    posting.output_counts = exchange.expects;
    exchange.ticket = post(group, std::move(posting));
    pause_randomly(late);
    if (operation % 64 == 63)
      while (open.size() > late() % 64) finish_one();
  }
  while (!open.empty()) finish_one();
}

class Timing : public testing::TestWithParam<int> {};

TEST_P(Timing, ChangesNoBitBetweenThreads) { run_as_rank_threads(GetParam(), expect_same_bits); }

TEST_P(Timing, ChangesNoBitBetweenProcesses) {
  TemporaryFolder folder;
  expect_ranks(GetParam(), on_endpoint(folder, GetParam(), expect_same_bits));
}

TEST_P(Timing, MixesNoCountsOfTwoExchanges) { run_as_rank_threads(GetParam(), exchange_far_ahead); }

INSTANTIATE_TEST_SUITE_P(Ranks, Timing, testing::Values(1, 2, 3, 4, 5));

// Returns true if all threads of the process are stopped, which may take a while on a busy machine.
bool is_stopped(pid_t process) {
  std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "stat");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.at(text.rfind(')') + 2) != 'T') return false;
  }
  return true;
}

void stop(pid_t process) {
  kill(process, SIGSTOP);
  while (!is_stopped(process)) std::this_thread::yield();
}

// Stops rank 1, again and again, until it is in the middle of a segment. Returns false if it
// executes no segment any more.
bool stop_in_the_middle(Endpoint& endpoint) {
  pid_t process = endpoint.peers().peer(1).pid;
  const auto& executing = endpoint.peers().control(1).executing;
  auto is_executing = [&] {
    return std::any_of(executing.begin(), executing.end(),
                       [](const auto& word) { return word.load() != 0; });
  };
  for (auto begin = Clock::now(); Clock::now() - begin < 5s;) {
    if (!is_executing()) continue;
    stop(process);
    if (is_executing()) return true;
    kill(process, SIGCONT);
  }
  return false;
}

// Rank 0 sends `signal` to rank 1 while rank 1 is in the middle of a segment, then executes nothing
// and creates the file `posted`, after which rank 1 posts. Returns the error text; empty if there
// was no error.
template <typename Error, typename Memory>
std::string error_after(int signal, Endpoint& endpoint, Memory& values,
                        const std::filesystem::path& posted) {
  GroupMember& group = endpoint.world();
  run(group, barrier_call());
  auto posting = call(Collective::all_reduce, values, values);
  posting.timeout = 500ms;
  if (group.rank() == 1) {
    while (!std::filesystem::exists(posted)) std::this_thread::sleep_for(1ms);
    (void)post(group, std::move(posting));  // and executes this rank's part
    std::this_thread::sleep_for(20s);
    return {};
  }
  auto ticket = post(group, std::move(posting));
  std::ofstream{posted};
  if (!stop_in_the_middle(endpoint)) return "";
  auto begin = Clock::now();
  kill(endpoint.peers().peer(1).pid, signal);
  try {
    group.wait(ticket);
  } catch (const Error& error) {
    EXPECT_LT(Clock::now() - begin, 3s);
    return error.what();
  }
  return "";
}

// Tries again if rank 1 had already executed its last segment when it was stopped, because then
// there is no error.
template <typename Error, typename MakeMemory>
void expect_error(int signal, const std::vector<std::string>& parts, const MakeMemory& make) {
  constexpr int tries = 5;
  constexpr int was_through = 3;
  for (int i = 0; i < tries; ++i) {
    TemporaryFolder folder;
    RankProcesses ranks(2, on_endpoint(folder, 2, [&](Endpoint& endpoint) {
                          auto values = make(endpoint);
                          auto text =
                              error_after<Error>(signal, endpoint, *values, folder / "posted");
                          if (text.empty()) _exit(was_through);
                          for (const auto& part : parts) EXPECT_TRUE(contains(text, part)) << text;
                        }));
    auto result = ranks.wait(0, 30s);
    ranks.kill(1, SIGKILL);
    if (result.exit_code == was_through) continue;
    EXPECT_TRUE(result.ok()) << result;
    return;
  }
  FAIL() << "rank 1 was through when it was stopped, " << tries << " times";
}

// About 10 ms of work: 80 MB, or less under ThreadSanitizer.
constexpr std::size_t large = under_thread_sanitizer ? 2'000'000 : 20'000'000;

auto in_arena(Endpoint& endpoint) { return std::make_unique<ArenaArray<float>>(endpoint, large); }
auto in_private(Endpoint&) { return std::make_unique<std::vector<float>>(large, 1.0F); }

const std::vector<std::string> stopped{"rank 1 began a part of all_reduce #2 (",
                                       "and did not finish it"};
const std::vector<std::string> killed{"rank 1 of 2 was lost", "its last call was all_reduce #2"};

TEST(MiddleOfASegment, ARankThatStopsIsNamed) {
  expect_error<Timeout>(SIGSTOP, stopped, in_arena);
  expect_error<Timeout>(SIGSTOP, stopped, in_private);
}

TEST(MiddleOfASegment, ARankThatDiesIsNamed) {
  expect_error<PeerLost>(SIGKILL, killed, in_arena);
  expect_error<PeerLost>(SIGKILL, killed, in_private);
}

}  // namespace
}  // namespace lockstep::test
