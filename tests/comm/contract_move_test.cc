// The contract of the operations that only move values, on every backend.
#include "support/torch/backend_test.h"
#include "support/torch/values.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <numeric>

using namespace lockstep;
using test::values;

namespace {

using Counts = std::vector<std::int64_t>;

void expect_bits(const at::Tensor& found, const at::Tensor& expected, std::string_view what) {
  EXPECT_TRUE(test::same_bits(found, expected))
      << what << " of " << found.scalar_type() << ", " << found.numel() << " elements";
}

at::Tensor all_values(int size, std::int64_t count, at::ScalarType dtype, int salt = 0) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < size; ++rank)
    parts.push_back(values(rank, count, dtype, salt).view({-1}).view(at::kByte));
  return at::cat(parts).view(dtype);
}

class MoveContract : public test::BackendTest {};

TEST_P(MoveContract, BroadcastOfEveryDtypeFromEveryRoot) {
  run([&](Group group) {
    int root = 0;
    for (auto dtype : test::all_dtypes) {
      for (std::int64_t length : {0, 1, 19, 4097}) {
        auto tensor = values(group.rank(), length, dtype);
        group.broadcast(tensor, root).wait();
        expect_bits(tensor, values(root, length, dtype), "broadcast");
        root = (root + 1) % group.size();
      }
    }
  });
}

TEST_P(MoveContract, AllGather) {
  run([&](Group group) {
    for (auto dtype : test::all_dtypes) {
      for (std::int64_t length : {0, 1, 23, 2049}) {
        auto output = at::empty({group.size() * length}, dtype);
        group.all_gather(output, values(group.rank(), length, dtype)).wait();
        expect_bits(output, all_values(group.size(), length, dtype), "all_gather");
      }
    }
  });
}

TEST_P(MoveContract, AllGatherInPlaceAndFromStridedInput) {
  run([&](Group group) {
    auto output = at::zeros({group.size(), 6});
    output[group.rank()].copy_(values(group.rank(), 6, at::kFloat));
    group.all_gather(output, output[group.rank()]).wait();
    expect_bits(output.view({-1}), all_values(group.size(), 6, at::kFloat), "in place");
    auto strided = values(group.rank(), 6, at::kFloat).view({2, 3}).t();
    group.all_gather(output, strided).wait();
    expect_bits(output[group.rank()].clone(), strided.contiguous().view({6}), "strided");
  });
}

TEST_P(MoveContract, UnevenAllGather) {
  run([&](Group group) {
    for (std::int64_t base : {0, 3}) {
      Counts counts;
      for (int rank = 0; rank < group.size(); ++rank)
        counts.push_back(base + (rank * 5 + 2) % 4 * 100);
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < group.size(); ++rank)
        parts.push_back(values(rank, counts[rank], at::kInt));
      auto expected = at::cat(parts);
      auto output = at::empty({expected.numel()}, at::kInt);
      group.all_gather(output, parts[group.rank()], counts).wait();
      expect_bits(output, expected, "uneven all_gather");
    }
  });
}

TEST_P(MoveContract, AllToAll) {
  run([&](Group group) {
    for (auto dtype : {at::kFloat, at::kBool, at::kComplexDouble, at::kHalf}) {
      for (std::int64_t part : {0, 1, 5, 1001}) {
        auto output = at::empty({group.size() * part}, dtype);
        group.all_to_all(output, values(group.rank(), group.size() * part, dtype)).wait();
        for (int from = 0; from < group.size(); ++from) {
          auto sent = values(from, group.size() * part, dtype).narrow(0, group.rank() * part, part);
          expect_bits(output.narrow(0, from * part, part).clone(), sent.clone(), "all_to_all");
        }
      }
    }
  });
}

TEST_P(MoveContract, UnevenAllToAll) {
  run([&](Group group) {
    // The number of elements that `from` sends to `to`, often zero.
    auto count = [](int from, int to) -> std::int64_t { return (from * 7 + to * 3) % 4 * 11; };
    Counts in;
    Counts out;
    for (int peer = 0; peer < group.size(); ++peer) in.push_back(count(group.rank(), peer));
    for (int peer = 0; peer < group.size(); ++peer) out.push_back(count(peer, group.rank()));
    auto input =
        values(group.rank(), std::accumulate(in.begin(), in.end(), std::int64_t{0}), at::kLong);
    auto output = at::empty({std::accumulate(out.begin(), out.end(), std::int64_t{0})}, at::kLong);
    group.all_to_all(output, input, out, in).wait();
    std::int64_t to_begin = 0;
    for (int from = 0; from < group.size(); ++from) {
      std::int64_t from_begin = 0;
      std::int64_t from_all = 0;
      for (int peer = 0; peer < group.size(); ++peer) {
        if (peer < group.rank()) from_begin += count(from, peer);
        from_all += count(from, peer);
      }
      auto sent = values(from, from_all, at::kLong).narrow(0, from_begin, out[from]);
      expect_bits(output.narrow(0, to_begin, out[from]).clone(), sent.clone(), "uneven all_to_all");
      to_begin += out[from];
    }
  });
}

TEST_P(MoveContract, GatherAndScatterAtEveryRoot) {
  run([&](Group group) {
    for (int root = 0; root < group.size(); ++root) {
      for (std::int64_t length : {0, 1, 321}) {
        bool is_root = group.is_root(root);
        auto gathered = is_root ? at::empty({group.size() * length}, at::kDouble) : at::Tensor();
        group.gather(gathered, values(group.rank(), length, at::kDouble), root).wait();
        if (is_root) expect_bits(gathered, all_values(group.size(), length, at::kDouble), "gather");
        auto whole = values(root, group.size() * length, at::kBFloat16);
        auto part = at::empty({length}, at::kBFloat16);
        group.scatter(part, is_root ? whole : at::Tensor(), root).wait();
        expect_bits(part, whole.narrow(0, group.rank() * length, length).clone(), "scatter");
      }
    }
  });
}

TEST_P(MoveContract, MessagesArriveInTheOrderOfTheirPosts) {
  run([&](Group group) {
    if (group.size() == 1) return;
    int next = (group.rank() + 1) % group.size();
    int before = (group.rank() + group.size() - 1) % group.size();
    std::vector<Work> works;
    std::vector<at::Tensor> received;
    for (int number = 0; number < 6; ++number) {
      works.push_back(group.send(values(group.rank(), 100 * number + 1, at::kFloat, number), next,
                                 {.tag = "ring"}));
    }
    for (int number = 0; number < 6; ++number) {
      received.push_back(at::empty({100 * number + 1}));
      works.push_back(group.recv(received.back(), before, {.tag = "ring"}));
    }
    for (auto& work : works) work.wait();
    for (int number = 0; number < 6; ++number) {
      expect_bits(received[number], values(before, 100 * number + 1, at::kFloat, number),
                  "message");
    }
  });
}

TEST_P(MoveContract, ReceivesMayBeWaitedForInAnyOrder) {
  run([&](Group group) {
    if (group.is_root()) {
      std::vector<Work> works;
      std::vector<at::Tensor> received;
      for (int from = 1; from < group.size(); ++from) {
        received.push_back(at::empty({5000}, at::kInt));
        works.push_back(group.recv(received.back(), from));
      }
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
      for (int from = 1; from < group.size(); ++from)
        expect_bits(received[from - 1], values(from, 5000, at::kInt), "message");
      return;
    }
    group.send(values(group.rank(), 5000, at::kInt), 0).wait();
  });
}

TEST_P(MoveContract, BarrierWaitsForTheLast) {
  run([&](Group group) {
    auto begin = Clock::now();
    if (group.is_root(group.size() - 1)) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    group.barrier().wait();
    if (group.size() > 1 && group.is_root())
      EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(30));
    for (int round = 0; round < 50; ++round) group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, MoveContract, test::every_backend({1, 2, 3, 5}),
                         test::backend_test_name);

}  // namespace
