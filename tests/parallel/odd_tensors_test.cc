// Buffers and parameters that are not plain dense memory: they are broadcast correctly, or all
// ranks get one line that names them before anything has changed.
#include "base/format.h"
#include "parallel/sharded/support.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <ATen/ops/eye.h>
#include <ATen/ops/quantize_per_tensor.h>

namespace lockstep {
namespace {

using namespace test;

using Wrap = std::function<void(std::shared_ptr<torch::nn::Module>, const Group&)>;

std::map<std::string, Wrap> wraps() {
  std::map<std::string, Wrap> all = {
      {"ddp", [](auto module, const Group& group) { DistributedDataParallel ddp(module, group); }}};
  for (ShardLevel level : all_levels)
    all[name_of(level)] = [level](auto module, const Group& group) {
      auto sharded = fully_shard(module, group, {.level = level});
      sharded.unshard();
    };
  return all;
}

std::shared_ptr<torch::nn::LinearImpl> linear() {
  return std::make_shared<torch::nn::LinearImpl>(4, 4);
}

class OddTensor : public testing::TestWithParam<std::string> {
 protected:
  Wrap wrap = wraps().at(GetParam());
};

TEST_P(OddTensor, ExpandedAndOverlappingBuffersBecomeThoseOfRankZero) {
  run_as_threads(3, [&](Group group) {
    auto module = linear();
    auto made = [](int rank) {
      return std::vector<at::Tensor>{values({1, 4}, rank).expand({4, 4}),
                                     values({1}, rank).expand({5}),
                                     values({4, 1, 3}, rank).expand({4, 6, 3}),
                                     values({8}, rank).as_strided({3, 4}, {2, 1}),  // overlapping
                                     values({4, 10}, rank).slice(1, 0, 10, 2),      // with gaps
                                     values({3, 4}, rank).t(),
                                     at::complex(values({4}, rank), values({4}, rank)).conj(),
                                     values({0, 3}, rank).expand({2, 0, 3})};
    };
    int number = 0;
    for (const at::Tensor& buffer : made(group.rank()))
      module->register_buffer(formatted("b{}", number++), buffer);
    wrap(module, group);
    number = 0;
    for (const at::Tensor& expected : made(0)) {
      std::string name = formatted("b{}", number++);
      EXPECT_TRUE(same_bits(module->named_buffers()[name].resolve_conj(), expected.resolve_conj()))
          << name;
    }
  });
}

TEST_P(OddTensor, WhatCannotBeBroadcastIsNamedOnEveryRank) {
  std::map<std::string, std::function<at::Tensor()>> odd = {
      {"sparse", [] { return at::eye(4).to_sparse(); }},
      {"compressed", [] { return at::eye(4).to_sparse_csr(); }},
      {"quantized", [] { return at::quantize_per_tensor(at::eye(4), 0.1, 0, at::kQInt8); }},
      {"meta", [] { return at::empty({3}, at::kMeta); }}};
  for (const auto& [name, make] : odd)
    run_as_threads(3, [&](Group group) {
      auto module = linear();
      module->register_buffer(name, make());
      at::Tensor before = module->weight.detach().clone();
      std::string text = message_of<InvalidArgument>([&] { wrap(module, group); });
      expect_words(text, {name, "ignored"});
      EXPECT_EQ(text.find('\n'), std::string::npos);
      EXPECT_TRUE(same_bits(module->weight, before));
      group.barrier().wait();
    });
}

TEST_P(OddTensor, WhatIsOddOnOneRankOnlyIsAMismatch) {
  run_as_threads(3, [&](Group group) {
    auto module = linear();
    module->register_buffer("adjacency", group.rank() == 2 ? at::eye(4).to_sparse() : at::eye(4));
    expect_words(message_of<Mismatch>([&] { wrap(module, group); }), {"adjacency", "rank 2"});
    group.barrier().wait();
  });
}

TEST_P(OddTensor, ABufferThatRequiresAGradientIsNamed) {
  run_as_threads(2, [&](Group group) {
    auto module = linear();
    module->register_buffer("scale", at::ones({4}).requires_grad_());
    at::Tensor before = module->weight.detach().clone();
    expect_words(message_of<InvalidArgument>([&] { wrap(module, group); }),
                 {"buffer scale requires a gradient"});
    EXPECT_TRUE(same_bits(module->weight, before));
    group.barrier().wait();
  });
}

TEST_P(OddTensor, ABufferThatRequiresAGradientOnOneRankOnlyIsAMismatch) {
  run_as_threads(2, [&](Group group) {
    auto module = linear();
    module->register_buffer("scale", at::ones({4}).set_requires_grad(group.rank() == 1));
    expect_words(message_of<Mismatch>([&] { wrap(module, group); }),
                 {"buffer scale: Float [4] with gradient"});
    group.barrier().wait();
  });
}

TEST_P(OddTensor, ATrainedParameterWhoseElementsShareMemoryIsNamed) {
  run_as_threads(2, [&](Group group) {
    auto module = linear();
    module->weight.set_data(values({1, 4}, 1).expand({4, 4}));
    expect_words(message_of<InvalidArgument>([&] { wrap(module, group); }), {"weight", "clone()"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, OddTensor, testing::Values("ddp", "optimizer", "gradients", "full"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
