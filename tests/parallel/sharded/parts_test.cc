// What ranks keep beside their slices becomes whole tensors on rank 0, and slices again.
#include "parallel/sharded/pair.h"

namespace lockstep::test {
namespace {

class Parts : public OnEveryLevel {};

// Parameter i of a state: the number of the element plus 1000 i, in the order of the whole tensor.
at::Tensor whole_of(std::size_t i, at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).reshape(sizes) +
         1000.0 * static_cast<double>(i);
}

TEST_P(Parts, AreCutAndGatheredWithoutLoss) {
  run([](Pair& pair, Group group) {
    std::vector<NamedPart> named = pair.sharded->named_parameters();
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < named.size(); ++i) {
      parts.push_back(cut_part(whole_of(i, named[i].slice.sizes), named[i]));
      EXPECT_EQ(parts.back().sizes(), named[i].tensor.sizes()) << named[i].name;
    }
    parts[1].reset();
    std::vector<at::Tensor> wholes = pair.sharded->gather_parts(parts);
    ASSERT_EQ(wholes.size(), named.size());
    for (std::size_t i = 0; i < named.size(); ++i) {
      EXPECT_EQ(wholes[i].defined(), group.is_root() && i != 1) << named[i].name;
      if (wholes[i].defined())
        EXPECT_TRUE(same_bits(wholes[i], whole_of(i, named[i].slice.sizes))) << named[i].name;
    }
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
    std::vector<NamedPart> named = sharded.named_parameters();
    EXPECT_TRUE(same_bits(cut_part(values.contiguous(), named[0]), named[0].tensor.detach()));
    std::vector<at::Tensor> wholes = sharded.gather_parts(sharded.parameters());
    if (group.is_root()) EXPECT_TRUE(wholes[0].equal(values));
  });
}

TEST_P(Parts, WhatDoesNotFitIsNamed) {
  run([](Pair& pair, Group) {
    std::vector<at::Tensor> parts = pair.sharded->parameters();
    parts.pop_back();
    expect_words(message_of<InvalidArgument>([&] { (void)pair.sharded->gather_parts(parts); }),
                 {"expected 4 parts", "found 3"});
    parts.push_back(at::zeros({100}));
    expect_words(message_of<InvalidArgument>([&] { (void)pair.sharded->gather_parts(parts); }),
                 {"1.bias", "found 100"});
    NamedPart first = pair.sharded->named_parameters()[0];
    expect_words(message_of<BadInput>([&] {
                   (void)cut_part(at::zeros({4, 6}), first);
                 }),
                 {"0.weight", "[6, 4]", "[4, 6]"});
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, Parts, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep::test
