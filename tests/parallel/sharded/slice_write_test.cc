// The effect on gathered parameters when all ranks, some ranks or no rank write slices.
#include "parallel/sharded/pair.h"

#include "dispatch/lazy_storage.h"

#include <mutex>
#include <sstream>

namespace lockstep {
namespace {

using namespace test;

class SliceWrite : public OnEveryLevel {};

void add_to_all(Pair& pair, double value) {
  torch::NoGradGuard no_grad;
  for (const at::Tensor& slice : pair.sharded->parameters()) slice.add_(value);
  for (const at::Tensor& parameter : pair.plain->parameters()) parameter.add_(value);
}

void expect_no_memory(Pair& pair) {
  for (int i : {0, 1}) {
    EXPECT_FALSE(dispatch::has_memory(pair.layer(i).weight)) << i;
    EXPECT_ANY_THROW((void)pair.layer(i).weight.data_ptr<float>()) << i;
  }
}

TEST_P(SliceWrite, TakesOldValuesAwayFromWhatReadsMemory) {
  run([](Pair& pair, Group) {
    for (int turn = 0; turn < 2; ++turn) {
      pair.use();
      add_to_all(pair, 0.5);
      expect_no_memory(pair);
      std::ostringstream file;
      EXPECT_ANY_THROW(torch::save(pair.model, file));
      pair.use();
    }
  });
}

TEST_P(SliceWrite, FromTheParameterItselfTakesItsMemoryAway) {
  run([](Pair& pair, Group) {
    torch::NoGradGuard no_grad;
    pair.use();
    for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
         pair.sharded->named_parameters()) {
      at::Tensor whole = pair.model->named_parameters()[name];
      auto read_and_write = [&] {
        at::Tensor own = tensor;
        at::add_out(own, whole.narrow(0, slice.range.begin, slice.range.length()), own);
      };
      if (whole.dim() == 1) read_and_write();
    }
    for (int i : {0, 1}) {
      EXPECT_FALSE(dispatch::has_memory(pair.layer(i).bias)) << i;
      pair.plain_layer(i).bias.mul_(2);
    }
    pair.use();
  });
}

// Every rank writes slices, and no two ranks write slices of the same parameter.
TEST_P(SliceWrite, OfOtherSlicesOnEachRankIsSeenByAll) {
  run([](Pair& pair, Group group) {
    torch::NoGradGuard no_grad;
    for (int turn = 0; turn < 3; ++turn) {
      (void)pair.model->forward(Pair::input());
      int number = 0;
      for (const at::Tensor& slice : pair.sharded->parameters())
        if (slice.numel() > 0 && number++ % 2 == group.rank() % 2) slice.add_(1 + group.rank());
      std::map<std::string, at::Tensor> used;
      for (const auto& item : pair.model->named_parameters()) used[item.key()] = item.value() + 0;
      for (const auto& [name, values] : pair.sharded->state_dict())
        EXPECT_TRUE(same_bits(used.at(name), values)) << name << ", turn " << turn;
    }
  });
}

std::string text_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Mismatch& error) {
    return error.what();
  } catch (const PeerLost& error) {
    return error.what();
  } catch (const Aborted& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST_P(SliceWrite, OnOneRankAfterAnEvaluationIsRightOrAnErrorAtOnce) {
  for (ShardStorage storage : all_storages) {
    std::mutex mutex;
    std::string texts;
    auto body = [&](Group group) {
      Pair pair(group, {.units = {"*"}, .level = GetParam(), .storage = storage});
      std::string text = text_of([&] {
        {
          torch::NoGradGuard no_grad;
          (void)pair.model->forward(Pair::input());
          (void)pair.layer(0).weight.sum();
          if (group.rank() == 1) pair.sharded->parameters()[0].add_(1);
          (void)pair.layer(0).weight.sum();
        }
        pair.layer(0).forward(Pair::input()).sum().backward();
      });
      std::lock_guard lock(mutex);
      texts += text;
    };
    run_as_threads(3, body, std::chrono::seconds(10));
    expect_contains(texts, "slice");
    expect_contains(texts, "unit 0");
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SliceWrite, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
