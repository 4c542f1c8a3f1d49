// The handle: its construction, its results, and that its destructor removes everything from the
// model.
#include "parallel/support.h"

#include <lockstep/base/error.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <type_traits>

namespace lockstep {
namespace {

using namespace test;

// A user's module that is not a holder.
struct Plain : torch::nn::Module {
  Plain() : fc(register_module("fc", torch::nn::Linear(3, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  torch::nn::Linear fc;
};

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& calls) : calls(calls) {}
  void operator()(const torch::autograd::Variable&) override { ++calls; }
  int& calls;
};

bool has_hook(const at::Tensor& tensor) {
  return torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr;
}

void set_hook(const at::Tensor& tensor, int& calls) {
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<CountingHook>(calls));
}

TEST(DistributedDataParallel, TakesModulesPointersAndHolders) {
  run_as_threads(2, [](Group group) {
    Plain module;
    auto pointer = std::make_shared<Plain>();
    torch::nn::Sequential holder(torch::nn::Linear(3, 2));
    DistributedDataParallel a(module, group), b(pointer, group), c(holder, group);
    module.forward(values({1, 3}, group.rank())).sum().backward();
    EXPECT_TRUE(same_bits(module.fc->weight.grad()[0], (values({3}, 0) + values({3}, 1)) / 2));
    EXPECT_EQ(a.group().rank(), group.rank());
  });
}

TEST(DistributedDataParallel, IsAHandleThatMovesAndIsNotCopied) {
  static_assert(!std::is_copy_constructible_v<DistributedDataParallel>);
  run_as_threads(2, [](Group group) {
    Plain module;
    DistributedDataParallel first(module, group);
    DistributedDataParallel second(std::move(first));
    module.forward(values({1, 3}, group.rank())).sum().backward();
    EXPECT_TRUE(same_bits(module.fc->weight.grad()[0], (values({3}, 0) + values({3}, 1)) / 2));
  });
}

TEST(DistributedDataParallel, RankZerosParametersAndBuffersReplaceTheOthersInPlace) {
  run_as_threads(3, [](Group group) {
    ConvNet model;
    fill_parameters(*model, 10 * group.rank());
    model->norm->running_mean.fill_(group.rank() + 1);
    model->norm->num_batches_tracked.fill_(group.rank() + 5);
    void* memory = model->fc->weight.data_ptr();
    DistributedDataParallel ddp(model, group);
    ConvNet expected;
    fill_parameters(*expected, 0);
    for (const auto& item : expected->named_parameters())
      EXPECT_TRUE(same_bits(model->named_parameters()[item.key()], item.value())) << item.key();
    EXPECT_EQ(model->norm->running_mean.sum().item<float>(), 4);
    EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 5);
    EXPECT_EQ(model->fc->weight.data_ptr(), memory);
  });
}

TEST(DistributedDataParallel, NamesTheFirstDifferenceBetweenRanks) {
  auto difference = [](auto change, DistributedDataParallelOptions of_rank_2 = {}) {
    std::string text;
    run_as_threads(4, [&](Group group) {
      ConvNet model;
      at::Tensor before = model->fc->weight.detach().clone();
      if (group.rank() == 2) change(*model);
      std::string mine = message_of<Mismatch>([&] {
        DistributedDataParallel ddp(
            model, group, group.rank() == 2 ? of_rank_2 : DistributedDataParallelOptions{});
      });
      EXPECT_TRUE(same_bits(before, model->fc->weight) ||
                  model->fc->weight.scalar_type() != at::kFloat);
      EXPECT_FALSE(has_hook(model->fc->bias));
      group.barrier().wait();  // the group is still usable
      if (group.is_root()) text = mine;
    });
    return text;
  };
  expect_contains(
      difference([](ConvNetImpl& m) { m.fc->bias.set_data(torch::zeros({11})); }),
      "rank 0 has parameter fc.bias: Float [10]; rank 2 has parameter fc.bias: Float [11]");
  expect_contains(difference([](ConvNetImpl& m) { m.to(at::kDouble); }),
                  "rank 2 has parameter frozen: Double [5]");
  expect_contains(difference([](ConvNetImpl& m) { m.conv->weight.set_requires_grad(false); }),
                  "rank 2 has parameter conv.weight: Float [4, 1, 3, 3] without gradient");
  expect_contains(difference([](ConvNetImpl& m) { m.register_buffer("extra", torch::zeros({2})); }),
                  "rank 2 has buffer extra: Float [2]");
  expect_contains(
      difference([](ConvNetImpl& m) { m.register_parameter("zzz", torch::zeros({2})); }),
      "parameter zzz: Float [2]");
  expect_contains(difference([](ConvNetImpl&) {}, {.bucket_bytes = 77}),
                  "rank 2 has option bucket_bytes = 77");
}

TEST(DistributedDataParallel, RefusesBucketsWithoutSize) {
  Plain module;
  EXPECT_THROW((void)DistributedDataParallel(module, Group(), {.bucket_bytes = 0}),
               InvalidArgument);
  EXPECT_THROW((void)DistributedDataParallel(std::shared_ptr<Plain>(), Group()), InvalidArgument);
}

struct Head : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
  void tie(const at::Tensor& to) { parameters_["weight"] = weight = to; }
};

struct Tied : torch::nn::Module {
  Tied() {
    embedding = register_module("embedding", torch::nn::Embedding(5, 4));
    head =
        register_module("head", std::make_shared<Head>(torch::nn::LinearOptions(4, 5).bias(false)));
    head->tie(embedding->weight);
  }
  at::Tensor forward(const at::Tensor& ids) { return head->forward(embedding(ids)); }
  torch::nn::Embedding embedding{nullptr};
  std::shared_ptr<Head> head;
};

TEST(DistributedDataParallel, ATiedWeightIsOneParameterAndIsAveragedOnce) {
  run_as_threads(3, [](Group group) {
    auto ids = [](int rank) { return at::arange(3) + rank; };
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < 3; ++rank) {
      Tied alone;
      fill_parameters(alone, 1);
      alone.forward(ids(rank)).square().sum().backward();
      of_ranks.push_back({alone.embedding->weight.grad()});
    }
    Tied model;
    fill_parameters(model, 1);
    DistributedDataParallel ddp(model, group);
    ASSERT_EQ(ddp.parameters().size(), 1U);
    EXPECT_TRUE(ddp.parameters()[0].is_same(model.head->weight));
    EXPECT_EQ(ddp.named_parameters()[0].aliases, std::vector<std::string>{"head.weight"});
    model.forward(ids(group.rank())).square().sum().backward();
    EXPECT_TRUE(same_bits(model.head->weight.grad(), average(of_ranks)[0]));
  });
}

TEST(DistributedDataParallel, StateDictHasTheNamesOfPythonAndLoads) {
  run_as_threads(2, [](Group group) {
    models::Gpt gpt(models::GptOptions{
        .layers = 1, .heads = 1, .hidden_size = 4, .context_length = 4, .vocabulary = 5});
    DistributedDataParallel ddp(gpt, group);
    auto state = ddp.state_dict();
    EXPECT_TRUE(state.contains("transformer.wte.weight"));
    EXPECT_TRUE(state.contains("lm_head.weight"));
    EXPECT_EQ(state["lm_head.weight"].data_ptr(), gpt->transformer->wte->weight.data_ptr());
    EXPECT_FALSE(state["lm_head.weight"].requires_grad());
    std::map<std::string, at::Tensor> other;
    for (auto& [name, tensor] : state) other[name] = at::full_like(tensor, 2);
    ddp.load_state_dict(other);
    EXPECT_EQ(gpt->transformer->wte->weight.min().item<float>(), 2);
    other.erase("transformer.wpe.weight");
    expect_contains(message_of<BadInput>([&] { ddp.load_state_dict(other); }),
                    "transformer.wpe.weight");
  });
}

TEST(DistributedDataParallel, ClipsByTheNormOfTheAverage) {
  run_as_threads(2, [](Group group) {
    Plain module;
    DistributedDataParallel ddp(module, group);
    module.forward(values({4, 3}, group.rank())).sum().backward();
    std::vector<at::Tensor> all;
    for (auto& parameter : ddp.parameters()) all.push_back(parameter.grad().flatten());
    double norm = at::cat(all).norm().item<double>();
    EXPECT_NEAR(ddp.clip_grad_norm(norm / 4), norm, 1e-6 * norm);
    all.clear();
    for (auto& parameter : ddp.parameters()) all.push_back(parameter.grad().flatten());
    EXPECT_NEAR(at::cat(all).norm().item<double>(), norm / 4, 1e-4 * norm);
    EXPECT_NEAR(ddp.clip_grad_norm(1e9, std::numeric_limits<double>::infinity()),
                at::cat(all).abs().max().item<double>(), 1e-6);
  });
}

TEST(DistributedDataParallel, RemovesItsHooksAndLeavesGradientsBehind) {
  Plain module;
  at::Tensor gradient;
  run_as_threads(2, [&](Group group) {
    Plain other;
    Plain& mine = group.is_root() ? module : other;
    {
      DistributedDataParallel ddp(mine, group);
      mine.forward(values({1, 3}, group.rank())).sum().backward();
      EXPECT_TRUE(has_hook(mine.fc->weight));
      if (group.is_root()) gradient = mine.fc->weight.grad().clone();
    }
    EXPECT_FALSE(has_hook(mine.fc->weight));
    EXPECT_FALSE(has_hook(mine.fc->bias));
  });
  EXPECT_TRUE(same_bits(module.fc->weight.grad(), gradient));  // the group is destroyed
  EXPECT_EQ(module.fc->weight.grad().storage().nbytes(), module.fc->weight.nbytes());
  module.zero_grad();
  module.forward(values({1, 3}, 0)).sum().backward();
  EXPECT_TRUE(same_bits(module.fc->weight.grad()[0], values({3}, 0)));
}

TEST(DistributedDataParallel, ChainsAndRestoresTheHookThatWasThere) {
  run_as_threads(2, [](Group group) {
    Plain module;
    int calls = 0;
    set_hook(module.fc->weight, calls);
    {
      DistributedDataParallel ddp(module, group);
      module.forward(values({1, 3}, group.rank())).sum().backward();
      EXPECT_EQ(calls, 1);
      EXPECT_TRUE(same_bits(module.fc->weight.grad()[0], (values({3}, 0) + values({3}, 1)) / 2));
    }
    module.forward(values({1, 3}, 0)).sum().backward();
    EXPECT_EQ(calls, 2);
    EXPECT_FALSE(has_hook(module.fc->bias));
  });
}

TEST(DistributedDataParallel, TwoHandlesOfOneModuleMayEndInAnyOrder) {
  run_as_threads(2, [](Group group) {
    Plain module;
    auto first = std::make_unique<DistributedDataParallel>(module, group);
    auto second = std::make_unique<DistributedDataParallel>(module, group);
    first.reset();
    module.forward(values({1, 3}, group.rank())).sum().backward();
    EXPECT_TRUE(same_bits(module.fc->weight.grad()[0], (values({3}, 0) + values({3}, 1)) / 2));
    second.reset();
    EXPECT_FALSE(has_hook(module.fc->weight));
  });
}

TEST(DistributedDataParallel, AScopeMayOutliveItsHandle) {
  Plain module;
  auto ddp = std::make_unique<DistributedDataParallel>(module, Group());
  auto scope = ddp->no_sync();
  ddp.reset();
  EXPECT_FALSE(has_hook(module.fc->weight));
}

TEST(DistributedDataParallel, SeveralModelsAndAPartOfTheRanks) {
  run_as_threads(3, [](Group group) {
    Plain everywhere, somewhere;
    DistributedDataParallel all(everywhere, group);
    std::vector<int> ranks = {0, 2};
    std::optional<Group> part = group.subset(ranks);
    std::optional<DistributedDataParallel> some;
    if (part) some.emplace(somewhere, *part);
    for (int step = 0; step < 3; ++step) {
      all.zero_grad();
      everywhere.forward(values({1, 3}, group.rank())).sum().backward();
      if (!part) continue;
      some->zero_grad();
      somewhere.forward(values({1, 3}, group.rank())).sum().backward();
      EXPECT_TRUE(same_bits(somewhere.fc->weight.grad()[0], (values({3}, 0) + values({3}, 2)) / 2));
    }
    EXPECT_TRUE(same_bits(everywhere.fc->weight.grad()[0],
                          ((values({3}, 0) + values({3}, 1)) + values({3}, 2)) / 3));
  });
}

TEST(DistributedDataParallel, AModelWithoutGradientsIsFine) {
  run_as_threads(2, [](Group group) {
    Plain module;
    for (auto& parameter : module.parameters()) parameter.set_requires_grad(false);
    DistributedDataParallel ddp(module, group);
    EXPECT_EQ(ddp.parameters().size(), 2U);
  });
}

// Each handle would average what the other has averaged already, or is about to average.
TEST(DistributedDataParallel, AParameterOfTwoHandlesIsNamed) {
  run_as_threads(2, [](Group group) {
    Plain module;
    DistributedDataParallel first(module, group);
    std::optional<DistributedDataParallel> second(std::in_place, module, group);
    auto backward = [&] { module.forward(values({1, 3}, group.rank())).sum().backward(); };
    {
      auto of_first = first.no_sync();
      auto of_second = second->no_sync();
      backward();
    }
    auto is_average = [&] {
      return same_bits(module.fc->weight.grad()[0], (values({3}, 0) + values({3}, 1)) / 2);
    };
    first.zero_grad();
    {
      auto of_second = second->no_sync();
      backward();
      EXPECT_TRUE(is_average());
    }
    first.zero_grad();
    expect_contains(message_of<InvalidArgument>(backward), "belongs to two handles");
    second.reset();
    first.zero_grad();
    backward();
    EXPECT_TRUE(is_average());
  });
}

}  // namespace
}  // namespace lockstep
