// Semantics on every backend besides values: posting is sufficient, groups are independent, and
// arguments are checked before anything is sent.
#include <lockstep/base/error.h>

#include "support/messages.h"
#include "support/torch/backend_test.h"
#include "support/torch/values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <thread>
#include <utility>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

class Posting : public test::BackendTest {};

TEST_P(Posting, TwoGroupsMayBeWaitedForInOppositeOrders) {
  run([](Group group) {
    auto other = group.split(0, -group.rank());
    EXPECT_EQ(other.rank(), group.size() - 1 - group.rank());
    for (int round = 0; round < 5; ++round) {
      auto first = at::full({4001}, group.rank() + 1.0f);
      auto second = at::full({3}, group.rank() + 1.0f);
      auto a = group.all_reduce(first);
      auto b = other.all_reduce(second);
      if (group.rank() % 2 == 0) a.wait();
      b.wait();
      a.wait();
      float sum = static_cast<float>(group.size() * (group.size() + 1)) / 2;
      EXPECT_EQ(first[4000].item<float>(), sum);
      EXPECT_EQ(second[2].item<float>(), sum);
    }
  });
}

TEST_P(Posting, ARankThatPostsAndSleepsStallsNobody) {
  run([](Group group) {
    auto tensor = at::ones({100003});
    group.barrier().wait();
    auto begin = Clock::now();
    auto work = group.all_reduce(tensor);
    if (group.is_root()) {
      std::this_thread::sleep_for(600ms);
      EXPECT_TRUE(work.done());
    }
    work.wait();
    if (!group.is_root()) EXPECT_LT(Clock::now() - begin, 450ms);
    EXPECT_EQ(tensor[77].item<float>(), static_cast<float>(group.size()));
  });
}

TEST_P(Posting, OperationsTakeEffectInTheOrderOfTheirPosts) {
  run([](Group group) {
    auto tensor = at::full({1500}, group.rank() + 1.0f);
    group.all_reduce(tensor).drop();
    group.broadcast(tensor, group.size() - 1).drop();
    static_cast<void>(group.all_reduce(tensor));
    auto gathered = at::empty({1500 * group.size()});
    group.all_gather(gathered, tensor).wait();
    float sum = static_cast<float>(group.size() * (group.size() + 1)) / 2;
    EXPECT_TRUE(gathered.eq(sum * static_cast<float>(group.size())).all().item<bool>());
  });
}

TEST_P(Posting, ADroppedWorkKeepsItsTensors) {
  run([](Group group) {
    for (int round = 0; round < 20; ++round) {
      const std::int64_t length = 5000 + round;
      if (round % group.size() == group.rank()) {
        std::this_thread::sleep_for(1ms);  // the other ranks have dropped their handles by now
        auto sum = at::ones({length});
        group.all_reduce(sum).wait();
        EXPECT_TRUE(sum.eq(group.size()).all().item<bool>()) << "round " << round;
      } else {
        group.all_reduce(at::ones({length})).drop();
        auto next = at::full({length}, -7.0F);  // reuses the memory of a destroyed tensor
      }
    }
    group.barrier().wait();
  });
}

TEST_P(Posting, AWorkMayBeWaitedForTwiceAndCopied) {
  run([](Group group) {
    auto tensor = at::ones({9});
    auto work = group.all_reduce(tensor);
    auto copy = work;
    copy.wait();
    work.wait();
    EXPECT_TRUE(work.done() && copy.done());
  });
}

TEST_P(Posting, ParametersThatRequireGradMayBeWritten) {
  run([](Group group) {
    auto parameter = at::full({4}, static_cast<float>(group.rank())).set_requires_grad(true);
    group.broadcast(parameter, group.size() - 1).wait();
    EXPECT_EQ(parameter.detach()[0].item<float>(), static_cast<float>(group.size() - 1));
    EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
  });
}

// As after an operation of LibTorch in place. Tensors that are only read keep their versions.
TEST_P(Posting, OutputsGetAnotherVersion) {
  run([](Group group) {
    const int size = group.size(), rank = group.rank();
    const auto input = at::ones({2}), inputs = at::ones({2 * size});
    const auto part = at::zeros({2}), whole = at::zeros({2 * size});
    const auto of_input = input._version(), of_inputs = inputs._version();
    auto expect_write = [](const at::Tensor& output, auto call) {
      const auto version = output._version();
      call().wait();
      EXPECT_GT(output._version(), version);
    };
    expect_write(part, [&] { return group.all_reduce(part); });
    expect_write(part, [&] { return group.broadcast(part); });
    expect_write(whole, [&] { return group.all_gather(whole, input); });
    expect_write(part, [&] { return group.reduce_scatter(part, inputs); });
    expect_write(whole, [&] { return group.all_to_all(whole, inputs); });
    expect_write(part,
                 [&] { return group.scatter(part, group.is_root() ? inputs : at::Tensor()); });
    auto sent = group.send(input, (rank + 1) % size);
    expect_write(part, [&] { return group.recv(part, (rank + size - 1) % size); });
    sent.wait();
    const auto numbers = at::complex(input, input);
    expect_write(numbers, [&] { return group.all_reduce(numbers); });
    const auto version = whole._version();
    group.gather(group.is_root() ? whole : at::Tensor(), input).wait();
    EXPECT_EQ(whole._version() > version, group.is_root());
    EXPECT_EQ(input._version(), of_input);
    EXPECT_EQ(inputs._version(), of_inputs);
    group.reduce(input).wait();
    EXPECT_EQ(input._version() > of_input, group.is_root());
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Posting, test::every_backend({2, 3}), test::backend_test_name);

class Splitting : public test::BackendTest {};

TEST_P(Splitting, ByColorAndKey) {
  run([](Group group) {
    // The odd and the even ranks, each in reverse order; rank 2 alone.
    int color = group.rank() == 2 ? 7 : group.rank() % 2;
    auto part = group.split(color, -group.rank());
    int members = color == 7   ? 1
                  : color == 1 ? group.size() / 2
                               : (group.size() + 1) / 2 - (group.size() > 2 ? 1 : 0);
    EXPECT_EQ(part.size(), members);
    EXPECT_EQ(part.name(), "world/split#1/" + std::to_string(color));
    auto tensor = at::full({13}, 1L << group.rank(), at::kLong);
    part.all_reduce(tensor, Op::bor).wait();
    std::int64_t expected = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      if ((rank == 2 ? 7 : rank % 2) == color) expected |= 1L << rank;
    }
    EXPECT_EQ(tensor[12].item<std::int64_t>(), expected);
    auto first = at::full({1}, group.rank(), at::kLong);
    part.broadcast(first, 0).wait();
    EXPECT_GE(first.item<std::int64_t>(), group.rank()) << "the highest rank comes first";
    auto again = part.split(0);
    EXPECT_EQ(again.size(), members);
    again.barrier().wait();
    group.barrier().wait();
  });
}

TEST_P(Splitting, OverlappingSubsets) {
  run([](Group group) {
    std::vector<std::vector<int>> lists{{1, 0}, {0, group.size() - 1}, {group.size() - 1}, {}};
    for (int rank = 0; rank < group.size(); ++rank)
      lists.back().push_back((rank + 1) % group.size());
    std::vector<std::optional<Group>> parts;
    for (const auto& list : lists) parts.push_back(group.subset(list));
    for (std::size_t number = 0; number < lists.size(); ++number) {
      bool member = std::ranges::find(lists[number], group.rank()) != lists[number].end();
      ASSERT_EQ(parts[number].has_value(), member);
      if (!member) continue;
      auto& part = *parts[number];
      EXPECT_EQ(lists[number][part.rank()], group.rank());
      auto ranks = at::empty({part.size()}, at::kLong);
      part.all_gather(ranks, at::full({1}, group.rank(), at::kLong)).wait();
      for (int place = 0; place < part.size(); ++place)
        EXPECT_EQ(ranks[place].item<std::int64_t>(), lists[number][place]);
    }
  });
}

TEST_P(Splitting, ListsThatMakeNoSenseAreRefusedAndTheGroupLives) {
  run([](Group group) {
    EXPECT_THROW(static_cast<void>(group.subset(std::vector<int>{})), InvalidArgument);
    EXPECT_THROW(static_cast<void>(group.subset(std::vector<int>{0, group.size()})),
                 InvalidArgument);
    EXPECT_THROW(static_cast<void>(group.subset(std::vector<int>{0, 0})), InvalidArgument);
    EXPECT_THROW(static_cast<void>(group.subset(std::vector<int>{-1})), InvalidArgument);
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Splitting, test::every_backend({3, 5}), test::backend_test_name);

class Arguments : public test::BackendTest {};

TEST_P(Arguments, WrongOnesAreRefusedBeforeAnythingIsSent) {
  run([](Group group) {
    int size = group.size();
    auto tensor = at::ones({4, 3});
    auto undefined = at::Tensor();
    std::vector<std::int64_t> counts(size, 4);
    auto refused = [&](auto call) { EXPECT_THROW(call().wait(), InvalidArgument); };
    refused([&] { return group.all_reduce(undefined); });
    refused([&] { return group.all_reduce(tensor.t()); });
    refused([&] { return group.all_reduce(at::ones({3}, at::kInt), Op::average); });
    refused([&] { return group.all_reduce(at::ones({3}), Op::band); });
    refused([&] { return group.all_reduce(at::ones({3}, at::kComplexFloat), Op::max); });
    refused([&] { return group.all_reduce(at::ones({3}).to(at::kFloat8_e4m3fn)); });
    refused([&] { return group.all_reduce(tensor.to_sparse()); });
    refused([&] { return group.all_reduce(tensor, Op::sum, {.timeout = Duration::zero()}); });
    refused([&] { return group.broadcast(tensor, size); });
    refused([&] { return group.broadcast(tensor, -1); });
    refused([&] { return group.broadcast(tensor.t()); });
    refused([&] { return group.all_gather(at::empty({size * 12 + 1}), tensor); });
    refused([&] { return group.all_gather(at::empty({size * 12}, at::kDouble), tensor); });
    refused([&] { return group.all_gather(at::empty({size * 4 + 1}), at::ones({4}), counts); });
    refused([&] { return group.all_gather(at::empty({size * 4}), at::ones({5}), counts); });
    refused([&] {
      return group.all_gather(at::empty({size * 4 - 4}), at::ones({4}),
                              std::span(counts).first(size - 1));
    });
    refused([&] { return group.reduce_scatter(at::empty({3}), at::ones({size * 3 + 1})); });
    refused([&] { return group.all_to_all(at::empty({size + 1}), at::ones({size + 1})); });
    auto fewer = counts;
    fewer.at(group.rank()) = 3;
    refused([&] {
      return group.all_to_all(at::empty({size * 4 - 1}), at::ones({size * 4}), fewer, counts);
    });
    refused([&] { return group.gather(group.is_root() ? undefined : tensor, tensor); });
    refused([&] { return group.scatter(at::empty({2}), group.is_root() ? undefined : tensor); });
    refused([&] { return group.send(tensor, group.rank()); });
    refused([&] { return group.recv(tensor, size); });
    auto whole = at::ones({size * 4});
    refused(
        [&] { return group.all_gather(whole, whole.narrow(0, group.rank() * 4 == 1 ? 2 : 1, 4)); });
    refused([&] { return group.all_to_all(whole, whole); });
    auto alive = at::ones({5});
    group.all_reduce(alive).wait();
    EXPECT_EQ(alive[0].item<float>(), static_cast<float>(size));
  });
}

// Views that LibTorch calls contiguous, although their memory does not contain their values.
TEST_P(Arguments, ViewsWithoutValuesOfTheirOwnAreReadAndNotWritten) {
  run([](Group group) {
    const auto size = static_cast<float>(group.size());
    const auto numbers = at::complex(at::ones({3}), at::ones({3}));
    const auto zeros = at::_efficientzerotensor({3}, at::TensorOptions(at::kFloat));
    const std::pair<at::Tensor, std::string> cases[] = {
        {numbers.conj(), "the output is a conjugated view; pass its resolve_conj()"},
        {at::imag(numbers.conj()), "the output is not contiguous; pass a contiguous tensor"},
        {at::_neg_view(at::ones({3})), "the output is a negated view; pass its resolve_neg()"},
        {zeros, "the output is zeros without memory; pass a clone() of it"}};
    for (const auto& [view, words] : cases) {
      const auto text =
          test::message_of<InvalidArgument>([&, view = view] { group.all_reduce(view).wait(); });
      test::expect_words(text, {words + ", and copy from it"});
    }
    auto gathered = at::ones({3 * group.size()});
    group.all_gather(gathered, zeros).wait();
    EXPECT_EQ(gathered.sum().item<float>(), 0);
    group.all_gather(gathered, at::_neg_view(at::ones({3}))).wait();
    EXPECT_EQ(gathered.sum().item<float>(), -3 * size);
  });
}

// backward() would take the call for the identity.
TEST_P(Arguments, OutputsThatWereComputedFromParametersAreRefused) {
  run([](Group group) {
    const int size = group.size();
    const auto leaf = at::zeros({size}).requires_grad_();
    const auto whole = at::sigmoid(leaf), one = whole.narrow(0, 0, 1);
    const auto input = at::ones({1}), inputs = at::ones({size});
    auto expect_refusal = [](auto call, const std::string& function) {
      const auto text = test::message_of<InvalidArgument>([&] { call().wait(); });
      const std::string remedy =
          function.empty() ? "pass" : "call lockstep::" + function + "(tensor, group), or pass";
      test::expect_words(text, {"was computed from tensors that require grad, and this call has no "
                                "derivative; " +
                                remedy + " its detach() if no gradient is needed"});
    };
    expect_refusal([&] { return group.all_reduce(whole); }, "all_reduce");
    expect_refusal([&] { return group.all_reduce(leaf.view({-1})); }, "all_reduce");
    expect_refusal([&] { return group.reduce(whole); }, "reduce");
    expect_refusal([&] { return group.broadcast(whole); }, "broadcast");
    expect_refusal([&] { return group.all_gather(whole, input); }, "all_gather");
    expect_refusal([&] { return group.reduce_scatter(one, inputs); }, "reduce_scatter");
    expect_refusal([&] { return group.all_to_all(whole, inputs); }, "all_to_all");
    expect_refusal([&] { return group.scatter(one, group.is_root() ? inputs : at::Tensor()); }, "");
    expect_refusal([&] { return group.recv(one, (group.rank() + 1) % size); }, "");
    if (group.is_root()) expect_refusal([&] { return group.gather(whole, input); }, "");
    {
      at::NoGradGuard no_grad;
      group.all_reduce(whole).wait();
    }
    const at::Tensor loss = whole.sum();
    group.all_reduce(loss).wait();
    EXPECT_EQ(loss.item<float>(), 0.5F * static_cast<float>(size * size * size));
    group.all_reduce(whole.detach()).wait();
    EXPECT_EQ(whole.detach()[0].item<float>(), 0.5F * static_cast<float>(size * size));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Arguments, test::every_backend({2, 3}), test::backend_test_name);

}  // namespace
