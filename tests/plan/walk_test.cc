// The order in which all ranks of a pipeline post.

#include <lockstep/base/error.h>
#include <lockstep/plan/schedule.h>

#include "plan/walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::plan {
namespace {

// Calls body(schedule) for every schedule of 1 to 5 ranks and 1 to 9 micro-batches, and for its
// forwards.
void for_each_schedule(const std::function<void(const Schedule&)>& body) {
  for (const std::string_view name : schedule_names())
    for (int ranks = 1; ranks <= 5; ++ranks)
      for (int chunks = stages_per_rank(name); chunks <= (name == "interleaved" ? 3 : 2); ++chunks)
        for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
          std::optional<Schedule> schedule;
          try {
            schedule = make_schedule(
                name, {.stages = ranks * chunks, .chunks = chunks, .micro_batches = micro_batches});
          } catch (const InvalidArgument&) {
            continue;  // its definition does not allow the shape
          }
          SCOPED_TRACE(std::string(name) + " of " + std::to_string(ranks) + " ranks, " +
                       std::to_string(chunks) + " chunks, " + std::to_string(micro_batches) +
                       " micro-batches");
          body(*schedule);
          body(forward_only(*schedule));
          body(forward_only(*schedule, (micro_batches + 1) / 2));
        }
}

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) text += (text.empty() ? "" : " ") + text_of(action);
  return text;
}

std::string order_of(std::string_view name, ScheduleShape shape) {
  return text_of(posting_order(make_schedule(name, shape)));
}

TEST(PostingOrder, IsTheOneOfTheSimulatedEnds) {
  EXPECT_EQ(order_of("gpipe", {.stages = 2, .micro_batches = 2}),
            "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1");
  EXPECT_EQ(order_of("1f1b", {.stages = 2, .micro_batches = 3}),
            "0F0 0F1 1F0 1B0 1F1 0B0 0F2 1B1 1F2 0B1 1B2 0B2");
  EXPECT_EQ(order_of("zb-h1", {.stages = 2, .micro_batches = 2}),
            "0F0 0F1 1F0 1I0 1F1 0I0 1I1 0W0 1W0 0I1 1W1 0W1");
}

// The order contains each action once, after the actions that it depends on; actions of one rank
// keep their order.
TEST(PostingOrder, IsALinearExtensionOfEverySchedule) {
  int schedules = 0;
  for_each_schedule([&](const Schedule& schedule) {
    ++schedules;
    const std::vector<int> ranks = rank_of_stages(schedule);
    std::vector<std::size_t> next(schedule.ranks.size());
    std::set<std::uint64_t> done;
    for (const Action& action : posting_order(schedule)) {
      const auto rank = static_cast<std::size_t>(ranks[static_cast<std::size_t>(action.stage)]);
      ASSERT_LT(next[rank], schedule.ranks[rank].size());
      ASSERT_EQ(text_of(action), text_of(schedule.ranks[rank][next[rank]++]));
      for (const Action& need : Needs(action, schedule.stages))
        ASSERT_TRUE(done.contains(key_of(need))) << text_of(action);
      if (action.compute != Compute::weight) done.insert(key_of(result_of(action)));
    }
    for (std::size_t rank = 0; rank < next.size(); ++rank)
      ASSERT_EQ(next[rank], schedule.ranks[rank].size());
  });
  EXPECT_GT(schedules, 600);
}

// A message between two ranks, identified by the action whose result it contains. -1: the action
// has no message.
struct Post {
  Action action;
  int source = -1;
  int destination = -1;
};

// Returns the message with an action's result; std::nullopt if the next stage is on the same rank,
// or if there is no next stage.
std::optional<Post> message_of(const Action& action, const std::vector<int>& ranks) {
  if (action.compute == Compute::weight) return std::nullopt;
  const int next = action.stage + (action.compute == Compute::forward ? 1 : -1);
  if (next < 0 || next >= static_cast<int>(ranks.size())) return std::nullopt;
  const Post post{action, ranks[static_cast<std::size_t>(action.stage)],
                  ranks[static_cast<std::size_t>(next)]};
  return post.source == post.destination ? std::nullopt : std::optional(post);
}

// Returns the operations that each rank posts: its sends, and the receives of its peers' messages.
using Posts = std::vector<std::deque<Post>>;

Posts posts_in(const std::vector<Action>& order, const Schedule& schedule) {
  const std::vector<int> ranks = rank_of_stages(schedule);
  Posts posts(schedule.ranks.size());
  for (const Action& action : order)
    if (const auto message = message_of(action, ranks)) {
      posts[static_cast<std::size_t>(message->source)].push_back(*message);
      posts[static_cast<std::size_t>(message->destination)].push_back(*message);
    }
  return posts;
}

// Returns the operations if each rank posts a send right after its action and a receive just before
// the result is needed.
Posts posts_when_needed(const Schedule& schedule) {
  const std::vector<int> ranks = rank_of_stages(schedule);
  Posts posts;
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::deque<Post>& own = posts.emplace_back();
    for (const Action& action : actions) {
      for (const Action& need : Needs(action, schedule.stages))
        if (const auto message = message_of(need, ranks);
            message && message->action.stage != action.stage)
          own.push_back(*message);
      if (const auto message = message_of(action, ranks)) own.push_back(*message);
    }
  }
  return posts;
}

// Simulates devices that can execute one message at a time: a message runs when it is the next
// operation of both devices. Returns true if all messages complete.
bool all_pass(Posts posts) {
  const auto key = [](const Post& post) { return key_of(result_of(post.action)); };
  for (bool moves = true; moves;) {
    moves = false;
    for (std::deque<Post>& own : posts) {
      if (own.empty()) continue;
      const Post message = own.front();
      auto& source = posts[static_cast<std::size_t>(message.source)];
      auto& destination = posts[static_cast<std::size_t>(message.destination)];
      if (source.empty() || destination.empty() || key(source.front()) != key(message) ||
          key(destination.front()) != key(message))
        continue;
      source.pop_front();
      destination.pop_front();
      moves = true;
    }
  }
  return std::ranges::all_of(posts, &std::deque<Post>::empty);
}

TEST(PostingOrder, NeedsRoomForOneMessage) {
  for_each_schedule([](const Schedule& schedule) {
    ASSERT_TRUE(all_pass(posts_in(posting_order(schedule), schedule)));
  });
}

// Checks the simulation itself: without a common order, devices that execute one message at a time
// deadlock.
TEST(PostingOrder, IsNeeded) {
  for (const char* name : {"1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"}) {
    const int chunks = stages_per_rank(name);
    const Schedule schedule = make_schedule(name, {.stages = 4 * chunks, .micro_batches = 8});
    EXPECT_FALSE(all_pass(posts_when_needed(schedule))) << name;
  }
  const Schedule one_way = forward_only(make_schedule("1f1b", {.stages = 4, .micro_batches = 8}));
  EXPECT_TRUE(all_pass(posts_when_needed(one_way)));
}

}  // namespace
}  // namespace lockstep::plan
