// The contract of the reducing operations, on every backend: every dtype, every Op, odd and empty
// lengths.
#include "support/torch/backend_test.h"
#include "support/torch/values.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <limits>
#include <numeric>

using namespace lockstep;
using test::values;

namespace {

class ReduceContract : public test::BackendTest {
 protected:
  void expect_result(const at::Tensor& found, const at::Tensor& expected,
                     std::string_view what) const {
    bool right = is_exact() ? test::same_bits(found, expected) : test::close(found, expected);
    EXPECT_TRUE(right) << what << " of " << found.scalar_type() << ": expected\n"
                       << expected << "\nfound\n"
                       << found;
  }
  // Half precision is combined in float in tree order and rounded once. Hierarchical groups also
  // round the result of each host. There are at most five roundings: one per host (at most three
  // hosts), one of the result, and one of `expected`. Each rounded value is at most the same
  // reduction of the absolute values.
  void expect_half(const at::Tensor& found, std::int64_t begin, std::int64_t length, Op op) const {
    std::vector<at::Tensor> inputs, sizes;
    for (int rank = 0; rank < size(); ++rank) {
      inputs.push_back(values(rank, length, found.scalar_type()));
      sizes.push_back(inputs.back().abs());
    }
    const auto expected = test::expected_reduction(inputs, op).narrow(0, begin, found.numel());
    bool right = test::same_bits(found, expected);
    if (backend() == test::BackendKind::hierarchical) {
      const double rounding = found.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
      const auto most = test::expected_reduction(sizes, op).narrow(0, begin, found.numel());
      right = ((found.to(at::kDouble) - expected.to(at::kDouble)).abs() <=
               most.to(at::kDouble) * 5 * rounding + 1e-6)
                  .all()
                  .item<bool>();
    }
    EXPECT_TRUE(right) << name_of(op) << " of " << length << " " << found.scalar_type();
  }
  // Returns true for every defined pair; for backends that compose most pairs, for a few of each
  // kind.
  [[nodiscard]] bool is_chosen(Op op, at::ScalarType dtype) const {
    return test::is_defined(op, dtype) && (is_exact() || op == Op::sum || dtype == at::kFloat ||
                                           dtype == at::kInt || dtype == at::kBool);
  }
};

TEST_P(ReduceContract, AllReduceOfEveryDtypeAndOp) {
  run([&](Group group) {
    for (auto dtype : test::numeric_dtypes) {
      for (auto op : test::all_ops) {
        if (!is_chosen(op, dtype)) continue;
        auto tensor = values(group.rank(), 37, dtype);
        group.all_reduce(tensor, op).wait();
        if (dtype == at::kHalf || dtype == at::kBFloat16) {
          expect_half(tensor, 0, 37, op);
        } else {
          expect_result(tensor, test::expected_reduction(group.size(), 37, dtype, op), name_of(op));
        }
      }
    }
  });
}

TEST_P(ReduceContract, AllReduceOfEveryLength) {
  run([&](Group group) {
    for (std::int64_t length : {0, 1, 2, 5, 63, 257, 4099, 65537}) {
      auto tensor = values(group.rank(), length, at::kFloat);
      group.all_reduce(tensor, Op::average).wait();
      expect_result(tensor, test::expected_reduction(group.size(), length, at::kFloat, Op::average),
                    "average");
    }
  });
}

TEST_P(ReduceContract, AllReduceOfTensorsThatAreSharedOrHaveDims) {
  run([&](Group group) {
    auto shared = group.empty_shared({3, 7}, at::kFloat);
    ASSERT_EQ(shared.sizes(), at::IntArrayRef({3, 7}));
    shared.copy_(values(group.rank(), 21, at::kFloat).view({3, 7}));
    group.all_reduce(shared).wait();
    expect_result(shared.view({21}),
                  test::expected_reduction(group.size(), 21, at::kFloat, Op::sum), "sum");
    auto part = group.empty_shared({50}, at::kDouble).narrow(0, 11, 23);
    part.copy_(values(group.rank(), 23, at::kDouble));
    group.all_reduce(part, Op::max).wait();
    expect_result(part.clone(), test::expected_reduction(group.size(), 23, at::kDouble, Op::max),
                  "max");
    auto scalar = at::full({}, group.rank() + 1, at::kLong);
    group.all_reduce(scalar).wait();
    EXPECT_EQ(scalar.item<std::int64_t>(), group.size() * (group.size() + 1) / 2);
  });
}

TEST_P(ReduceContract, SumsAndAveragesOfComplexNumbers) {
  run([&](Group group) {
    auto tensor = values(group.rank(), 9, at::kComplexFloat);
    group.all_reduce(tensor, Op::average).wait();
    auto expected = test::expected_reduction(group.size(), 18, at::kFloat, Op::average);
    expect_result(at::view_as_real(tensor).reshape({18}), expected, "average");
  });
}

TEST_P(ReduceContract, NotANumberGoesThroughMinAndMax) {
  run([&](Group group) {
    for (auto op : {Op::min, Op::max}) {
      auto tensor = at::arange(6, at::kFloat);
      if (group.rank() == group.size() - 1) tensor[2] = std::numeric_limits<float>::quiet_NaN();
      if (group.rank() == 0) tensor[4] = std::numeric_limits<float>::quiet_NaN();
      group.all_reduce(tensor, op).wait();
      EXPECT_TRUE(tensor[2].isnan().item<bool>() && tensor[4].isnan().item<bool>())
          << name_of(op) << tensor;
      EXPECT_EQ(tensor[5].item<float>(), 5);
    }
  });
}

TEST_P(ReduceContract, NegativeZeroStays) {
  run([&](Group group) {
    auto tensor = at::full({3}, -0.0f);
    group.all_reduce(tensor).wait();
    EXPECT_TRUE(tensor.signbit().all().item<bool>());
  });
}

TEST_P(ReduceContract, ReduceToEveryRootLeavesTheOthersAlone) {
  run([&](Group group) {
    for (int root = 0; root < group.size(); ++root) {
      for (auto [op, dtype] : {std::pair{Op::sum, at::kFloat},
                               {Op::average, at::kBFloat16},
                               {Op::product, at::kDouble},
                               {Op::bxor, at::kShort}}) {
        auto mine = values(group.rank(), 41, dtype, root);
        auto tensor = mine.clone();
        group.reduce(tensor, root, op).wait();
        auto expected = group.rank() == root
                            ? test::expected_reduction(group.size(), 41, dtype, op, root)
                            : mine;
        expect_result(tensor, expected, name_of(op));
      }
    }
  });
}

TEST_P(ReduceContract, ReduceTakesStridedInputsWhereItOnlyReads) {
  run([&](Group group) {
    auto mine = values(group.rank(), 12, at::kFloat).view({3, 4}).t();
    bool root = group.is_root(group.size() - 1);
    auto tensor = root ? mine.contiguous() : mine;
    group.reduce(tensor, group.size() - 1).wait();
    auto expected = test::expected_reduction(group.size(), 12, at::kFloat, Op::sum)
                        .view({3, 4})
                        .t()
                        .contiguous();
    if (root) expect_result(tensor, expected, "sum");
  });
}

TEST_P(ReduceContract, ReduceScatter) {
  run([&](Group group) {
    for (auto [op, dtype] :
         {std::pair{Op::sum, at::kFloat}, {Op::average, at::kHalf}, {Op::min, at::kLong}}) {
      for (std::int64_t part : {0, 1, 7, 1025}) {
        auto input = values(group.rank(), part * group.size(), dtype);
        auto output = at::empty({part}, dtype);
        group.reduce_scatter(output, input, op).wait();
        auto all = test::expected_reduction(group.size(), part * group.size(), dtype, op);
        expect_result(output, all.narrow(0, part * group.rank(), part), name_of(op));
        EXPECT_TRUE(test::same_bits(input, values(group.rank(), part * group.size(), dtype)))
            << "the input changed";
      }
    }
  });
}

TEST_P(ReduceContract, UnevenReduceScatter) {
  run([&](Group group) {
    for (int shift : {0, 1}) {
      std::vector<std::int64_t> counts;
      for (int rank = 0; rank < group.size(); ++rank)
        counts.push_back(shift + rank * 13 % 7 + (rank == 2 ? 900 : 0));
      auto begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
      auto all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      auto output = at::empty({counts[group.rank()]}, at::kFloat);
      group.reduce_scatter(output, values(group.rank(), all, at::kFloat), counts, Op::sum).wait();
      auto expected = test::expected_reduction(group.size(), all, at::kFloat, Op::sum);
      expect_result(output, expected.narrow(0, begin, counts[group.rank()]), "sum");
    }
  });
}

TEST_P(ReduceContract, ReduceScatterIntoItsOwnPart) {
  run([&](Group group) {
    auto input = values(group.rank(), 11 * group.size(), at::kFloat);
    group.reduce_scatter(input.narrow(0, 11 * group.rank(), 11), input).wait();
    auto expected = test::expected_reduction(group.size(), 11 * group.size(), at::kFloat, Op::sum);
    expect_result(input.narrow(0, 11 * group.rank(), 11).clone(),
                  expected.narrow(0, 11 * group.rank(), 11), "sum");
  });
}

// Lengths below and above the limit from which tensors are sent in parts, and parts of unequal
// length.
constexpr std::int64_t half_lengths[] = {0, 1, 2, 3, 8192, 8193, 20011};

TEST_P(ReduceContract, AllReduceOfHalfPrecision) {
  run([&](Group group) {
    auto check = [&](at::ScalarType dtype, Op op, std::int64_t length) {
      auto tensor = values(group.rank(), length, dtype);
      group.all_reduce(tensor, op).wait();
      expect_half(tensor, 0, length, op);
      auto first = tensor.clone();
      group.broadcast(first).wait();
      EXPECT_TRUE(test::same_bits(tensor, first)) << "other bits than rank 0: " << name_of(op);
    };
    for (auto dtype : {at::kBFloat16, at::kHalf})
      for (auto op : {Op::sum, Op::average, Op::product, Op::max})
        for (auto length : half_lengths) check(dtype, op, length);
    check(at::kBFloat16, Op::sum, 70001);  // long enough to be sent in parts with two ranks, too
  });
}

TEST_P(ReduceContract, ReduceAndReduceScatterOfHalfPrecision) {
  run([&](Group group) {
    for (auto op : {Op::sum, Op::average, Op::min})
      for (auto length : half_lengths) {
        const int root = group.size() - 1;
        auto mine = values(group.rank(), length, at::kBFloat16);
        auto tensor = mine.clone();
        group.reduce(tensor, root, op).wait();
        if (group.is_root(root)) expect_half(tensor, 0, length, op);
        if (!group.is_root(root)) EXPECT_TRUE(test::same_bits(tensor, mine));
        std::vector<std::int64_t> counts(group.size(), length / group.size());
        counts.back() += length % group.size();
        auto begin = group.rank() * (length / group.size());
        auto part = at::empty({counts[group.rank()]}, at::kBFloat16);
        group.reduce_scatter(part, mine, counts, op).wait();
        expect_half(part, begin, length, op);
      }
  });
}

// The sum of all ranks' values, or of one host's values, would overflow to infinity.
TEST_P(ReduceContract, AnAverageOfHalfPrecisionStaysInItsRange) {
  run([&](Group group) {
    for (std::int64_t length : {3, 20011}) {
      auto large = at::full({length}, 60000, at::kHalf);
      auto tensor = large.clone();
      group.all_reduce(tensor, Op::average).wait();
      EXPECT_TRUE(test::close(tensor, large)) << tensor[0].item<float>();
      auto part = at::empty({length}, at::kHalf);
      auto all = at::full({length * group.size()}, 60000, at::kHalf);
      group.reduce_scatter(part, all, Op::average).wait();
      EXPECT_TRUE(test::close(part, large)) << part[0].item<float>();
    }
  });
}

TEST_P(ReduceContract, HalfPrecisionThatIsNotFiniteStaysSo) {
  run([&](Group group) {
    for (auto dtype : {at::kBFloat16, at::kHalf})
      for (std::int64_t length : {7, 20011}) {
        const auto infinity = std::numeric_limits<float>::infinity();
        auto tensor = at::full({length}, 1, dtype);
        const bool is_last = group.rank() == group.size() - 1;
        if (group.rank() == 0) tensor[2] = std::numeric_limits<float>::quiet_NaN();
        if (is_last) tensor[length - 1] = infinity;
        if (group.rank() == 0) tensor[4] = infinity;
        if (is_last) tensor[4] = -infinity;
        group.all_reduce(tensor, Op::average).wait();
        EXPECT_TRUE(tensor[2].isnan().item<bool>());
        EXPECT_EQ(tensor[length - 1].item<float>(), infinity);
        if (group.size() > 1) EXPECT_TRUE(tensor[4].isnan().item<bool>());
        EXPECT_NEAR(tensor[length - 2].item<float>(), 1, 0.01);
      }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ReduceContract, test::every_backend({1, 2, 3, 5}),
                         test::backend_test_name);

}  // namespace
