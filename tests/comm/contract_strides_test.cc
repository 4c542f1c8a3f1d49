// Tensors of at most one element have meaningless strides: LibTorch calls them contiguous, and so
// does every backend.
#include "support/torch/backend_test.h"
#include "support/torch/late_device.h"
#include "support/torch/staged_ranks.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <numeric>

using namespace lockstep;

namespace {

constexpr at::ScalarType dtypes[] = {at::kFloat, at::kDouble,        at::kHalf, at::kBFloat16,
                                     at::kByte,  at::kComplexDouble, at::kLong, at::kShort};

constexpr int before = 40;  // the value of the elements around the one under test

// One element in the middle of other elements.
struct Lone {
  Lone(at::ScalarType dtype, int value) : all(at::full({2, 3}, before, dtype)) {
    tensor = all.select(1, 1).narrow(0, 1, 1);
    tensor.fill_(value);
    EXPECT_EQ(tensor.stride(0), 3);
    EXPECT_TRUE(tensor.is_contiguous());
  }
  void expect(int value, const char* what) const {
    auto found = all.to(at::kComplexDouble);
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(at::real(found).reshape({-1})[i].item<double>(), i == 4 ? value : before)
          << what << " of " << all.scalar_type() << ", place " << i;
  }

  at::Tensor all;
  at::Tensor tensor;
};

// An empty tensor with a nontrivial stride.
at::Tensor nothing(at::ScalarType dtype) {
  auto tensor = at::zeros({4, 3}, dtype).narrow(0, 2, 0).select(1, 1);
  EXPECT_EQ(tensor.stride(0), 3);
  return tensor;
}

at::Tensor of_ranks(int size, at::ScalarType dtype) {
  at::Tensor values = at::zeros({size}, dtype);
  for (int rank = 0; rank < size; ++rank) values[rank].fill_(rank + 1);
  return values;
}

class StrideContract : public test::BackendTest {};

TEST_P(StrideContract, OneElementIsReduced) {
  run([](Group group) {
    int size = group.size();
    int sum = size * (size + 1) / 2;
    for (auto dtype : dtypes) {
      Lone all(dtype, group.rank() + 1);
      group.all_reduce(all.tensor).wait();
      all.expect(sum, "all_reduce");
      Lone one(dtype, group.rank() + 1);
      group.reduce(one.tensor, size - 1).wait();
      one.expect(group.is_root(size - 1) ? sum : group.rank() + 1, "reduce");
      Lone part(dtype, 0);
      group.reduce_scatter(part.tensor, of_ranks(size, dtype)).wait();
      part.expect(size * (group.rank() + 1), "reduce_scatter");
    }
  });
}

TEST_P(StrideContract, OneElementIsMoved) {
  run([](Group group) {
    int size = group.size();
    int last = size - 1;
    for (auto dtype : dtypes) {
      Lone sent(dtype, group.rank() + 1);
      Lone whole(dtype, group.rank() + 1);
      group.broadcast(whole.tensor, last).wait();
      whole.expect(size, "broadcast");
      auto gathered = at::zeros({size}, dtype);
      group.all_gather(gathered, sent.tensor).wait();
      EXPECT_TRUE(gathered.equal(of_ranks(size, dtype))) << "all_gather of " << dtype;
      gathered.zero_();
      group.gather(group.is_root(last) ? gathered : at::Tensor(), sent.tensor, last).wait();
      if (group.is_root(last))
        EXPECT_TRUE(gathered.equal(of_ranks(size, dtype))) << "gather of " << dtype;
      Lone part(dtype, 0);
      group.scatter(part.tensor, group.is_root(last) ? of_ranks(size, dtype) : at::Tensor(), last)
          .wait();
      part.expect(group.rank() + 1, "scatter");
    }
  });
}

TEST_P(StrideContract, OneElementIsExchanged) {
  run([](Group group) {
    int size = group.size();
    int next = (group.rank() + 1) % size;
    int previous = (group.rank() + size - 1) % size;
    for (auto dtype : dtypes) {
      Lone sent(dtype, group.rank() + 1);
      Lone received(dtype, 0);
      // One element goes to the next rank, none to the other ranks.
      std::vector<std::int64_t> to(static_cast<std::size_t>(size), 0);
      auto from = to;
      to[static_cast<std::size_t>(next)] = from[static_cast<std::size_t>(previous)] = 1;
      group.all_to_all(received.tensor, sent.tensor, from, to).wait();
      received.expect(previous + 1, "all_to_all");
      if (size == 1) continue;
      Lone message(dtype, 0);
      Work sending = group.send(sent.tensor, next);
      group.recv(message.tensor, previous).wait();
      sending.wait();
      message.expect(previous + 1, "recv");
      sent.expect(group.rank() + 1, "send");
    }
  });
}

TEST_P(StrideContract, NoElementIsNoError) {
  run([](Group group) {
    for (auto dtype : dtypes) {
      auto none = nothing(dtype);
      auto other = nothing(dtype);
      group.all_reduce(none).wait();
      group.reduce(none).wait();
      group.broadcast(none).wait();
      group.all_gather(other, none).wait();
      group.reduce_scatter(other, none).wait();
      group.all_to_all(other, none).wait();
      group.gather(group.is_root() ? other : at::Tensor(), none).wait();
      group.scatter(other, group.is_root() ? none : at::Tensor()).wait();
      if (group.size() == 1) continue;
      Work sending = group.send(none, (group.rank() + 1) % group.size());
      group.recv(other, (group.rank() + group.size() - 1) % group.size()).wait();
      sending.wait();
    }
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, StrideContract, test::every_backend({1, 3}),
                         test::backend_test_name);

// The second operation uses part of the memory into which the first result has not been copied
// back.
TEST(StrideContractOfStaging, OneElementIsReduced) {
  test::run_staged(2, [](Group group) {
    auto all = test::on_late_device(at::full({2, 3}, group.rank() + 1.0F));
    auto one = all.select(1, 1).narrow(0, 1, 1);
    group.all_reduce(all).drop();
    group.all_reduce(one).wait();
    EXPECT_EQ(test::late_value(all.view({-1}), 4), 6);
    EXPECT_EQ(test::late_value(all.view({-1}), 3), 3);
    auto none = all.narrow(0, 0, 0).select(1, 1);
    group.all_reduce(none).wait();
    group.broadcast(one, 1).wait();
    EXPECT_EQ(test::late_value(all.view({-1}), 4), 6);
  });
}

}  // namespace
