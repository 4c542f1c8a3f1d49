// Whole tensors are divided into the slices of ranks, and assembled again.
#include "parallel/sharded/pair.h"

namespace lockstep::test {
namespace {

// Assembles a whole tensor from the parts of all ranks, which do not overlap.
at::Tensor put_together(const at::Tensor& part, const Part& named, Group group) {
  at::Tensor whole = at::zeros(named.slice.sizes);
  paste_part(part, named, whole);
  group.all_reduce(whole).wait();
  return whole;
}

class Parts : public OnEveryLevel {};

// Returns a whole tensor for parameter i, whose element j is j + 1000 i.
at::Tensor whole_of(std::size_t i, at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).reshape(sizes) +
         1000.0 * static_cast<double>(i);
}

TEST_P(Parts, AreCutAndGatheredWithoutLoss) {
  run([](Pair& pair, Group group) {
    std::vector<Part> named = pair.sharded->named_parameters();
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < named.size(); ++i) {
      parts.push_back(cut_part(whole_of(i, named[i].slice.sizes), named[i]));
      EXPECT_EQ(parts.back().sizes(), named[i].tensor.sizes()) << named[i].name;
    }
    for (std::size_t i = 0; i < named.size(); ++i)
      EXPECT_TRUE(
          same_bits(put_together(parts[i], named[i], group), whole_of(i, named[i].slice.sizes)))
          << named[i].name;
  });
}

// A slice is a range of the parameter's memory, which need not be row-major.
TEST_P(Parts, FollowTheParametersMemory) {
  run_as_threads(3, [](Group group) {
    torch::nn::Conv2d conv(3, 5, 2);
    fill_parameters(*conv, 3);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    auto values = conv->weight.detach().clone();
    ShardedModule sharded = fully_shard(conv, group, {.level = GetParam()});
    std::vector<Part> named = sharded.named_parameters();
    EXPECT_TRUE(same_bits(cut_part(values.contiguous(), named[0]), named[0].tensor.detach()));
    EXPECT_TRUE(put_together(named[0].tensor.detach(), named[0], group).equal(values));
  });
}

TEST_P(Parts, WhatDoesNotFitIsNamed) {
  run([](Pair& pair, Group) {
    Part first = pair.sharded->named_parameters()[0];
    expect_words(message_of<BadInput>([&] {
                   (void)cut_part(at::zeros({4, 6}), first);
                 }),
                 {"0.weight", "[6, 4]", "[4, 6]"});
    expect_words(message_of<BadInput>([&] {
                   paste_part(at::zeros({100}), first, at::zeros({6, 4}));
                 }),
                 {"0.weight", "found 100"});
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, Parts, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep::test
