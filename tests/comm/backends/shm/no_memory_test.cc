// Calls for which memory cannot be allocated.
#include "comm/backends/shm/ranks.h"
#include "support/quiet.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

// One of two ranks in an uneven exchange.
struct Exchange {
  explicit Exchange(int rank)
      : input(7, 1.0F + static_cast<float>(rank)),
        output(rank == 0 ? 5 : 9),
        to(rank == 0 ? std::vector<std::int64_t>{2, 5} : std::vector<std::int64_t>{3, 4}),
        from(rank == 0 ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{5, 4}) {}

  Posting posting() {
    auto exchange = call(Collective::all_to_all, input, output);
    exchange.input_counts = to;
    exchange.output_counts = from;
    exchange.timeout = std::chrono::seconds(5);
    return exchange;
  }
  void expect_complete() const {
    EXPECT_EQ(output.front(), 1);
    EXPECT_EQ(output.back(), 2);
  }

  std::vector<float> input, output;
  std::vector<std::int64_t> to, from;
};

// The last allocation of a post fails, whatever it is for; the peers have already seen the call.
TEST(NoMemory, ACallThatThrowsIsNotTakenForTheNext) {
  if (!can_count_calls()) GTEST_SKIP() << "a sanitizer has an allocator of its own";
  bool was_refused = false;
  for (int number = 40; number >= 0 && !was_refused; --number) {
    run_as_rank_threads(2, [&](Endpoint& endpoint) {
      GroupMember& steer = endpoint.make_group("steer", {0, 1});
      GroupMember& group = endpoint.world();
      Exchange exchange(group.rank());
      std::optional<CallId> id;
      try {
        if (group.rank() == 1) {
          run(steer, barrier_call());
          refuse_allocation(number);
        }
        id = post(group, exchange.posting());
      } catch (const std::bad_alloc&) {
        was_refused = true;
      }
      refuse_allocation(-1);
      if (group.rank() == 0) run(steer, barrier_call());
      if (!id) {
        EXPECT_THROW((void)post(group, exchange.posting()), Aborted);
        return;
      }
      try {
        group.wait(*id);
        exchange.expect_complete();
      } catch (const Aborted& end) {
        const std::string words = end.what();
        EXPECT_NE(words.find("rank 1 ended the group: std::bad_alloc"), std::string::npos) << words;
      }
    });
  }
  EXPECT_TRUE(was_refused);
}

}  // namespace
}  // namespace lockstep::test
