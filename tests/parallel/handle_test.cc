// The behaviour that a training loop can expect from the handle of every strategy.
#include <lockstep/parallel/handle.h>

#include "dispatch/lazy_storage.h"
#include "parallel/every_strategy.h"

#include <lockstep/module/state_dict.h>

#include <mutex>

namespace lockstep::test {
namespace {

torch::nn::Sequential two_layers() {
  torch::nn::Sequential model(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6),
                              torch::nn::Linear(6, 3));
  fill_parameters(*model, 3);
  return model;
}

Handle attached(const Strategy& strategy, torch::nn::Sequential& model, const Group& group) {
  if (!strategy.sharded) return DistributedDataParallel(model, group);
  ShardOptions options = *strategy.sharded;
  options.units = {"0", "2"};
  return fully_shard(model, group, options);
}

at::Tensor loss_of_layers(torch::nn::Sequential& model, int batch) {
  return model->forward(values({5, 4}, batch)).square().mean();
}

class EveryHandle : public testing::TestWithParam<Strategy> {
 protected:
  // Runs `body(model, handle)` on 1, 2 and 3 ranks.
  void run(const std::function<void(torch::nn::Sequential&, Handle&)>& body) {
    for (int ranks : {1, 2, 3})
      run_as_threads(ranks, [&](Group group) {
        torch::nn::Sequential model = two_layers();
        Handle handle = attached(GetParam(), model, group);
        body(model, handle);
      });
  }
};

TEST(UnattachedHandle, SaysSo) {
  Handle handle;
  EXPECT_FALSE(handle.is_attached());
  expect_words(message_of<InvalidArgument>([&] { (void)handle.parameters(); }),
               {"not attached to a module"});
  expect_words(message_of<InvalidArgument>([&] { (void)handle.no_sync(); }),
               {"not attached to a module"});
  expect_words(message_of<InvalidArgument>([&] { (void)handle.mesh(); }),
               {"not attached to a module"});
  expect_words(message_of<InvalidArgument>([&] { (void)ShardedModule().units(); }),
               {"not attached to a module"});
  (void)DistributedDataParallel();
}

TEST_P(EveryHandle, KnowsTheMeshThatItWasGiven) {
  run([](torch::nn::Sequential&, Handle& handle) { EXPECT_FALSE(handle.mesh().has_value()); });
  const bool is_sharded = GetParam().sharded.has_value();
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"dp", 4}}, {{"dp", 2}, {"fsdp", 2}}})
    run_as_threads(4, [&](Group group) {
      torch::nn::Sequential model = two_layers();
      Mesh mesh(group, axes);
      Handle handle;
      if (is_sharded) {
        ShardOptions options = *GetParam().sharded;
        options.units = {"0", "2"};
        handle = fully_shard(model, mesh, options);
      } else {
        handle = DistributedDataParallel(model, mesh);
      }
      ASSERT_TRUE(handle.mesh().has_value());
      EXPECT_EQ(handle.mesh()->axes(), axes);
      EXPECT_EQ(handle.mesh()->coordinates(), mesh.coordinates());
      EXPECT_EQ(handle.group().size(), 4);
      loss_of_layers(model, group.rank()).backward();
    });
}

TEST_P(EveryHandle, TrainsThroughOneType) {
  run([](torch::nn::Sequential& model, Handle& handle) {
    torch::optim::SGD sgd(handle.parameters(), 0.1);
    double first = 0, last = 0;
    for (int step = 0; step < 5; ++step) {
      handle.zero_grad();
      {
        auto scope = handle.no_sync();
        (loss_of_layers(model, 1) / 2).backward();
      }
      at::Tensor loss = loss_of_layers(model, 2);
      (loss / 2).backward();
      EXPECT_GT(handle.clip_grad_norm(0.5), 0);
      handle.clip_grad_value(0.25);
      sgd.step();
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(last, first);
    EXPECT_GT(handle.memory().kept(), 0);
    EXPECT_GT(handle.memory().gradients, 0);
  });
}

TEST_P(EveryHandle, CanBeMovedAndReplaced) {
  run([](torch::nn::Sequential& model, Handle& handle) {
    Group group = handle.group();
    Handle moved = std::move(handle);
    EXPECT_FALSE(handle.is_attached());
    loss_of_layers(model, 1).backward();
    EXPECT_TRUE(moved.parameters()[0].grad().defined());
    torch::nn::Sequential other = two_layers();
    moved = DistributedDataParallel(other, group);  // releases the first model
    loss_of_layers(other, 1).backward();
    EXPECT_TRUE(other->parameters()[0].grad().defined());
    moved = Handle();
    EXPECT_FALSE(moved.is_attached());
    EXPECT_TRUE(other->parameters()[0].grad().defined());
  });
}

TEST_P(EveryHandle, PartsTogetherAreTheWhole) {
  for (int ranks : {1, 2, 3, 5}) {
    std::mutex mutex;
    torch::nn::Sequential plain = two_layers();
    std::map<std::string, at::Tensor> expected = state_dict(*plain), found;
    for (const auto& [name, tensor] : expected) found[name] = at::full_like(tensor, -1);
    run_as_threads(ranks, [&](Group group) {
      torch::nn::Sequential model = two_layers();
      Handle handle = attached(GetParam(), model, group);
      std::vector<std::string> names;
      std::lock_guard lock(mutex);
      for (const Part& part : handle.state_parts()) {
        EXPECT_FALSE(dispatch::is_lazy(part.tensor)) << part.name;
        EXPECT_EQ(part.tensor.numel(), part.slice.numel()) << part.name;
        paste_part(part.tensor, part, found.at(part.name));
        names.push_back(part.name);
      }
      EXPECT_EQ(names.front(), "0.weight");
      EXPECT_EQ(names.size(), expected.size());
    });
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(same_bits(found[name], tensor)) << name;
  }
}

// 3 ranks read, part by part, a file that 2 ranks wrote by parts, under every strategy.
TEST_P(EveryHandle, TakesItsPartsOfOtherValues) {
  torch::nn::Sequential other = two_layers();
  fill_parameters(*other, 77);
  std::map<std::string, at::Tensor> wanted = state_dict(*other);
  for (int ranks : {1, 2, 3})
    run_as_threads(ranks, [&](Group group) {
      torch::nn::Sequential model = two_layers();
      Handle handle = attached(GetParam(), model, group);
      (void)model->forward(values({5, 4}, 1));  // parameters are gathered when values change
      for (const Part& part : handle.loading())
        part.tensor.copy_(cut_part(wanted.at(part.name), part).view(part.tensor.sizes()));
      auto all = handle.state_dict();
      for (const auto& [name, tensor] : wanted)
        EXPECT_TRUE(same_bits(all.at(name), tensor)) << name;
      model->eval();
      torch::nn::Sequential same = two_layers();
      load_state_dict(*same, wanted);
      same->eval();
      at::NoGradGuard no_grad;
      EXPECT_TRUE(same_bits(model->forward(values({5, 4}, 1)), same->forward(values({5, 4}, 1))));
    });
}

TEST_P(EveryHandle, AnExceptionEndsALoadAndTheHandleLives) {
  run([](torch::nn::Sequential& model, Handle& handle) {
    const auto load = [&] {
      for (const Part& part : handle.loading()) throw BadInput(part.name);
    };
    EXPECT_EQ(message_of<BadInput>(load), "0.weight");
    loss_of_layers(model, 1).backward();
    EXPECT_TRUE(handle.parameters()[0].grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(All, EveryHandle, testing::ValuesIn(every_strategy()), name_of_strategy);

}  // namespace
}  // namespace lockstep::test
