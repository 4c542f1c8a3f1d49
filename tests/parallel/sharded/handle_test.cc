// The handle: its accessors, the calls that it refuses, and the state after it is destroyed.
#include "dispatch/lazy_storage.h"
#include "parallel/sharded/support.h"

#include <lockstep/module/named_parameters.h>

#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <type_traits>

namespace lockstep {
namespace {

using namespace test;

// A second string is not taken for a bool.
static_assert(std::is_constructible_v<UnitRule, const char*, bool>);
static_assert(!std::is_constructible_v<UnitRule, const char*, const char*>);

TEST(ShardedHandle, GivesNamedSlicesThatCoverEachParameterOnce) {
  for (int ranks : {1, 2, 3, 5, 9}) {
    std::mutex mutex;
    std::map<std::string, std::vector<layout::Range>> ranges;
    run_as_threads(ranks, [&](Group group) {
      auto model = problems()[2].make();
      auto sharded = fully_shard(model, group, {.units = {"transformer.h.*"}});
      auto parameters = sharded.named_parameters();
      auto own = unique_parameters(*model);
      ASSERT_EQ(parameters.size(), own.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(parameters[i].name, own[i].name);
        EXPECT_EQ(parameters[i].slice.sizes, own[i].tensor.sizes().vec());
        EXPECT_EQ(parameters[i].tensor.sizes(),
                  at::IntArrayRef({parameters[i].slice.range.length()}));
        EXPECT_TRUE(parameters[i].tensor.is_leaf() && parameters[i].tensor.requires_grad());
        std::lock_guard lock(mutex);
        ranges[own[i].name].push_back(parameters[i].slice.range);
      }
    });
    auto model = problems()[2].make();
    for (const auto& [name, tensor, aliases] : unique_parameters(*model)) {
      auto& parts = ranges[name];
      std::erase_if(parts, [](const auto& range) { return range.empty(); });
      std::ranges::sort(parts, {}, &layout::Range::begin);
      std::int64_t end = 0;
      for (const auto& range : parts) {
        EXPECT_EQ(range.begin, end) << name;
        end = range.end;
      }
      EXPECT_EQ(end, tensor.numel()) << name;
    }
  }
}

TEST(ShardedHandle, SlicesOfAUnitLieSideBySideAndSoDoTheirGradients) {
  run_as_threads(2, [](Group group) {
    models::Mlp model(models::MlpOptions{{32, 64, 16}});
    auto sharded = fully_shard(model, group, {.units = {"layers.*"}});
    image_loss(model->forward(values({4, 32}, group.rank()))).backward();
    const char* end = nullptr;
    const char* end_of_gradient = nullptr;
    for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
         sharded.named_parameters()) {
      if (tensor.numel() == 0) continue;
      auto begin = static_cast<const char*>(tensor.const_data_ptr());
      auto gradient = static_cast<const char*>(tensor.grad().const_data_ptr());
      if (name.ends_with("bias") && end != nullptr && group.rank() == 1) {
        EXPECT_EQ(begin, end) << name;
        EXPECT_EQ(gradient, end_of_gradient) << name;
      }
      end = begin + tensor.nbytes();
      end_of_gradient = gradient + tensor.nbytes();
    }
  });
}

TEST(ShardedHandle, TheModuleKeepsItsTensorsAndLooksAsBefore) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, 2);
    auto* impl = model->weight.unsafeGetTensorImpl();
    auto sharded = fully_shard(model, group);
    EXPECT_EQ(model->weight.unsafeGetTensorImpl(), impl);
    EXPECT_EQ(model->parameters()[0].unsafeGetTensorImpl(), impl);
    EXPECT_EQ(model->weight.sizes(), at::IntArrayRef({2, 3}));
    EXPECT_TRUE(model->weight.is_leaf() && model->weight.requires_grad());
    EXPECT_TRUE(model->weight.device().is_cpu());
    EXPECT_TRUE(dispatch::is_lazy(model->weight));
    EXPECT_EQ(sharded.units(), (std::vector<std::string>{"rest"}));
  });
}

TEST(ShardedHandle, ClipsTheNormOfAllShardsTogether) {
  for (int ranks : {1, 2, 3}) {
    for (double norm_type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
      torch::nn::Linear plain(7, 5);
      fill_parameters(*plain, 2);
      (plain->forward(values({4, 7}, 1)).square().sum() * 3).backward();
      double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5, norm_type);
      run_as_threads(ranks, [&](Group group) {
        torch::nn::Linear model(7, 5);
        fill_parameters(*model, 2);
        auto sharded = fully_shard(model, group);
        (model->forward(values({4, 7}, 1)).square().sum() * 3).backward();
        EXPECT_NEAR(sharded.clip_grad_norm(0.5, norm_type), expected, expected * 1e-6);
        for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
             sharded.named_parameters()) {
          at::Tensor whole = name == "weight" ? plain->weight.grad() : plain->bias.grad();
          at::Tensor part = whole.view({-1}).narrow(0, slice.range.begin, slice.range.length());
          EXPECT_TRUE(at::allclose(tensor.grad(), part, 1e-5, 1e-8));
        }
      });
    }
  }
}

TEST(ShardedHandle, SavesAndLoadsWholeTensorsUnderEveryName) {
  run_as_threads(3, [](Group group) {
    Problem gpt = problems()[2];
    auto plain = gpt.make(), model = gpt.make();
    fill_parameters(*plain, 7);
    fill_parameters(*model, 8);
    auto sharded = fully_shard(model, group, {.units = gpt.units});
    std::map<std::string, at::Tensor> wanted;
    for (const auto& item : named_tensors(*plain)) wanted[item.name] = item.tensor;
    at::Tensor before = gpt.loss(*model, 3);
    sharded.load_state_dict(wanted);
    auto found = sharded.state_dict();
    EXPECT_EQ(found.size(), wanted.size());
    EXPECT_TRUE(found.contains("lm_head.weight"));
    for (const auto& [name, tensor] : wanted)
      EXPECT_TRUE(same_bits(found.at(name), tensor)) << name;
    EXPECT_NE(bits_of(gpt.loss(*model, 3)), bits_of(before));
    EXPECT_EQ(bits_of(gpt.loss(*model, 3)), bits_of(gpt.loss(*plain, 3)));

    auto refused = [&](std::map<std::string, at::Tensor> tensors) {
      return message_of<BadInput>([&] { sharded.load_state_dict(tensors); });
    };
    auto changed = wanted;
    changed["transformer.wpe.weight"] = at::ones({1});
    expect_contains(refused(changed), "transformer.wpe.weight: expected shape [8, 16]");
    changed = wanted;
    changed["extra"] = at::ones({1});
    expect_contains(refused(changed), "named extra");
    changed = wanted;
    changed["lm_head.weight"] = wanted["lm_head.weight"] + 1;
    expect_contains(refused(changed), "tied");
    changed = wanted;
    changed.erase("transformer.ln_f.weight");
    expect_contains(refused(changed), "transformer.ln_f.weight");
    EXPECT_EQ(bits_of(gpt.loss(*model, 3)), bits_of(gpt.loss(*plain, 3)));
  });
}

TEST(ShardedHandle, UnshardedLetsOneRankLookAlone) {
  run_as_threads(3, [](Group group) {
    torch::nn::Linear model(5, 4);
    fill_parameters(*model, 2);
    torch::nn::Linear plain(5, 4);
    fill_parameters(*plain, 2);
    auto sharded = fully_shard(model, group);
    {
      auto scope = sharded.unsharded();
      if (group.rank() == 1) {
        EXPECT_TRUE(same_bits(model->weight, plain->weight));
        EXPECT_EQ(model->weight.data_ptr<float>()[3], plain->weight.data_ptr<float>()[3]);
      }
      { auto inner = sharded.unsharded(); }
      EXPECT_TRUE(model->weight.norm().item<float>() > 0);
    }
    auto read = [&] { (void)model->weight.data_ptr<float>(); };
    expect_words(message_of<c10::Error>(read), {"unit rest", "unsharded()"});
  });
}

TEST(ShardedHandle, UnshardGivesTheModuleItsValuesBack) {
  Problem gpt = problems()[2];
  History expected = one_process(gpt, adamw(), 3, 2);
  run_as_threads(3, [&](Group group) {
    auto model = gpt.make();
    fill_parameters(*model, 5);
    {
      auto sharded = fully_shard(model, group, {.units = gpt.units});
      auto optimizer = adamw()(sharded.parameters());
      for (int step = 0; step < 2; ++step) {
        sharded.zero_grad();
        gpt.loss(*model, step * 3 + group.rank()).backward();
        optimizer->step();
      }
      sharded.unshard();
    }
    for (const auto& item : model->named_parameters()) {
      EXPECT_FALSE(dispatch::is_lazy(item.value()));
      EXPECT_TRUE(item.value().requires_grad());
      EXPECT_TRUE(same_bits(item.value(), expected.parameters.at(item.key()))) << item.key();
    }
    gpt.loss(*model, group.rank()).backward();  // no trace of the handle
    EXPECT_TRUE(model->parameters()[0].grad().defined());
  });
}

TEST(ShardedHandle, WithoutUnshardParametersSayWhereTheirValuesWent) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, 2);
    { auto sharded = fully_shard(model, group); }
    auto use = [&] { (void)model->weight.sum(); };
    expect_words(message_of<c10::Error>(use), {"handle is gone", "unshard()"});
  });
}

TEST(ShardedHandle, RefusesBadOptionsBeforeAnythingChanged) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, 2);
    at::Tensor values_of_0 = model->weight.detach().clone();
    group.broadcast(values_of_0, 0).wait();
    auto refused = [&](ShardOptions options) {
      return message_of<InvalidArgument>([&] { auto s = fully_shard(model, group, options); });
    };
    expect_contains(refused({.units = {"layers.*"}}), "'layers.*'");
    expect_contains(refused({.compute_dtype = at::kInt}), "floating-point");
    expect_contains(refused({.units = {{"*", std::nullopt, at::kInt}}}), "floating-point");
    expect_contains(refused({.prefetch = -1}), "prefetch");
    EXPECT_FALSE(dispatch::is_lazy(model->weight));
    std::shared_ptr<torch::nn::Module> none;
    expect_contains(message_of<InvalidArgument>([&] { auto s = fully_shard(none, group); }),
                    "null");
    auto sharded = fully_shard(model, group);
    expect_contains(refused({}), "sharded already");
    EXPECT_EQ(model->weight.sum().item<float>(), values_of_0.sum().item<float>());
  });
}

TEST(ShardedHandle, DifferentModelsOnRanksAreAMismatchThatNamesBoth) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, group.rank() == 0 ? 2 : 4);
    std::string text = message_of<Mismatch>([&] { auto sharded = fully_shard(model, group); });
    expect_words(text, {"weight", "[2, 3]", "[4, 3]"});
    EXPECT_FALSE(dispatch::is_lazy(model->weight));
    torch::nn::Linear alike(3, 2);
    text = message_of<Mismatch>([&] {
      auto sharded = fully_shard(
          alike, group, {.level = group.rank() == 0 ? ShardLevel::full : ShardLevel::optimizer});
    });
    expect_words(text, {"level = full", "level = optimizer"});
  });
}

TEST(ShardedHandle, ChangesBehindItsBackAreErrorsThatNameTheParameter) {
  run_as_threads(2, [](Group group) {
    torch::nn::Linear model(3, 2);
    auto sharded = fully_shard(model, group);
    model->to(at::kDouble);
    auto step = [&] { model->forward(values({1, 3}, 0).to(at::kDouble)).sum().backward(); };
    expect_words(message_of<InvalidArgument>(step), {"weight", "to()"});
    EXPECT_THROW(sharded.zero_grad(), InvalidArgument);
    EXPECT_THROW((void)sharded.state_dict(), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
