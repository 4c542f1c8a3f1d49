#include <lockstep/parallel/data/sync_batch_norm.h>

#include "parallel/data/hook_support.h"

#include <torch/nn/functional/batchnorm.h>

namespace lockstep {
namespace {

using namespace test;

struct SyncedNetImpl : torch::nn::Module {
  explicit SyncedNetImpl(std::optional<double> momentum = 0.1, bool affine = true,
                         bool tracks = true)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(3)
                                                                .momentum(momentum)
                                                                .affine(affine)
                                                                .track_running_stats(tracks)))),
        fc(register_module("fc", torch::nn::Linear(3 * 4 * 4, 6))),
        last(register_module("last", torch::nn::BatchNorm1d(6))) {
    to(at::kDouble);
    fill_parameters(*this, 5);
  }
  at::Tensor forward(const at::Tensor& images) {
    return last(fc(norm(conv(images)).sigmoid().flatten(1)));
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear fc;
  torch::nn::BatchNorm1d last;
};
TORCH_MODULE(SyncedNet);

at::Tensor synced_images(int rank, int step, std::int64_t rows) {
  return values({rows, 2, 6, 6}, 50 * step + rank).to(at::kDouble);
}

// The number of rows of a rank.
using RowsOfRank = std::function<std::int64_t(int rank)>;

class SyncNorms : public testing::TestWithParam<BackendRanks> {
 protected:
  // Makes three steps and an evaluation. Gradients, gradients of the input, and running statistics
  // must equal those of one process with all rows.
  static void compare(const RowsOfRank& rows, const std::function<SyncedNet()>& make,
                      at::MemoryFormat format = at::MemoryFormat::Contiguous) {
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      SyncedNet model = make(), expected = make();
      SyncBatchNorm sync(model, group);
      EXPECT_EQ(sync.layers(), (std::vector<std::string>{"norm", "last"}));
      DistributedDataParallel ddp(model, group);
      for (int step = 0; step < 3; ++step) {
        std::int64_t before = 0;
        std::vector<at::Tensor> all;
        for (int rank = 0; rank < group.size(); ++rank) {
          all.push_back(synced_images(rank, step, rows(rank)));
          if (rank < group.rank()) before += rows(rank);
        }
        at::Tensor own = all[static_cast<std::size_t>(group.rank())].contiguous(format);
        at::Tensor whole = at::cat(all);
        own.requires_grad_();
        whole.requires_grad_();
        at::Tensor weights = values({whole.size(0), 6}, 9).to(at::kDouble);
        ddp.zero_grad();
        expected->zero_grad();
        (model->forward(own).pow(2) * weights.narrow(0, before, own.size(0))).sum().backward();
        ((expected->forward(whole).pow(2) * weights).sum() / group.size()).backward();
        for (const auto& item : expected->named_parameters())
          EXPECT_LT(
              largest_difference(model->named_parameters()[item.key()].grad(), item.value().grad()),
              1e-12)
              << item.key();
        if (own.size(0) > 0)
          EXPECT_LT(largest_difference(own.grad() / group.size(),
                                       whole.grad().narrow(0, before, own.size(0))),
                    1e-12);
        for (const auto& item : expected->named_buffers())
          EXPECT_LT(largest_difference(model->named_buffers()[item.key()], item.value()), 1e-12)
              << item.key();
      }
      std::int64_t sent = group.traffic().bytes;
      model->eval();
      expected->eval();
      torch::NoGradGuard no_grad;
      at::Tensor images = synced_images(group.rank(), 7, 3 + group.rank());
      EXPECT_LT(largest_difference(model->forward(images), expected->forward(images)), 1e-11);
      EXPECT_EQ(group.traffic().bytes, sent);
    });
  }
};

TEST_P(SyncNorms, EvenBatches) {
  compare([](int) { return 4; }, [] { return SyncedNet(); });
}

TEST_P(SyncNorms, UnevenBatches) {
  compare([](int rank) { return 2 + 3 * rank; }, [] { return SyncedNet(); });
}

TEST_P(SyncNorms, BatchesWithoutRows) {
  compare([](int rank) { return rank == 1 ? 0 : 4; }, [] { return SyncedNet(); });
}

TEST_P(SyncNorms, CumulativeAverages) {
  compare([](int rank) { return 2 + rank; }, [] { return SyncedNet(std::nullopt); });
}

TEST_P(SyncNorms, NoWeights) {
  compare([](int rank) { return 2 + rank; }, [] { return SyncedNet(0.1, false); });
}

TEST_P(SyncNorms, NoRunningStatistics) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    SyncedNet model(0.1, true, false), expected(0.1, true, false);
    SyncBatchNorm sync(model, group);
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < group.size(); ++rank) all.push_back(synced_images(rank, 0, 3));
    at::Tensor found = model->norm(model->conv(all[static_cast<std::size_t>(group.rank())]));
    at::Tensor whole = expected->norm(expected->conv(at::cat(all)));
    EXPECT_LT(largest_difference(found, whole.narrow(0, 3 * group.rank(), 3)), 1e-12);
    // As in PyTorch, each rank normalizes its own batch in eval().
    model->eval();
    expected->eval();
    at::Tensor own = synced_images(group.rank(), 0, 3);
    EXPECT_LT(
        largest_difference(model->norm(model->conv(own)), expected->norm(expected->conv(own))),
        1e-12);
  });
}

TEST_P(SyncNorms, ChannelsLast) {
  compare([](int) { return 3; }, [] { return SyncedNet(); }, at::MemoryFormat::ChannelsLast);
}

INSTANTIATE_TEST_SUITE_P(All, SyncNorms, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(SyncBatchNorms, NarrowInputsAreComputedInFloat) {
  run_as_threads(2, [](Group group) {
    torch::nn::BatchNorm2d norm(3);
    SyncBatchNorm sync(norm, group);
    at::Tensor input = values({4, 3, 5, 5}, group.rank()).to(at::kBFloat16).requires_grad_();
    at::Tensor output = norm(input);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.square().sum().backward();
    EXPECT_EQ(input.grad().scalar_type(), at::kBFloat16);
    at::Tensor mean = output.detach().to(at::kFloat).mean({0, 2, 3});
    group.all_reduce(mean, Op::average).wait();
    EXPECT_LT(mean.abs().max().item<float>(), 1e-2);
    EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
  });
}

// Weights, statistics and inputs in 16 bits, as after module->to(). The reference is one process
// with all rows in float.
TEST(SyncBatchNorms, NarrowLayersAreComputedInFloat) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const double most = dtype == at::kHalf ? 4e-3 : 3e-2;
    torch::nn::BatchNorm2d whole(3);
    const at::Tensor all = values({8, 3, 5, 5}, 3).to(dtype);
    at::Tensor input = all.to(at::kFloat).requires_grad_();
    const at::Tensor expected = whole(input);
    expected.pow(3).sum().backward();
    run_as_threads(2, [&](Group group) {
      torch::nn::BatchNorm2d norm(3);
      norm->to(dtype);
      SyncBatchNorm sync(norm, group);
      at::Tensor own = all.narrow(0, 4 * group.rank(), 4).clone().requires_grad_();
      const at::Tensor output = norm(own);
      EXPECT_EQ(output.scalar_type(), dtype);
      const at::Tensor wanted = expected.detach().narrow(0, 4 * group.rank(), 4);
      EXPECT_LT((output.detach().to(at::kFloat) - wanted).abs().max().item<double>(), most);
      output.to(at::kFloat).pow(3).sum().backward();
      const at::Tensor slope = input.grad().narrow(0, 4 * group.rank(), 4);
      EXPECT_LT((own.grad().to(at::kFloat) - slope).abs().max().item<double>(),
                4 * most * slope.abs().max().item<double>());
      EXPECT_EQ(norm->weight.grad().scalar_type(), dtype);
    });
  }
}

// Options may be changed later and apply to the next call, as in a layer without synchronization.
TEST(SyncBatchNorms, OptionsAreThoseOfTheCall) {
  torch::nn::BatchNorm1d whole(3);
  whole->options.eps(0.5).momentum(0.3);
  const at::Tensor all = values({8, 3}, 3);
  const at::Tensor expected = whole(all);
  run_as_threads(2, [&](Group group) {
    torch::nn::BatchNorm1d norm(3);
    SyncBatchNorm sync(norm, group);
    norm->options.eps(0.5).momentum(0.3);
    const at::Tensor output = norm(all.narrow(0, 4 * group.rank(), 4));
    EXPECT_LT(largest_difference(output, expected.narrow(0, 4 * group.rank(), 4)), 1e-5);
    EXPECT_LT(largest_difference(norm->running_mean, whole->running_mean), 1e-6);
  });
}

TEST(SyncBatchNorms, LayersComputeAloneAfterItsEnd) {
  run_as_threads(2, [](Group group) {
    torch::nn::BatchNorm1d norm(3), plain(3);
    { SyncBatchNorm sync(norm, group); }
    at::Tensor input = values({4, 3}, group.rank());
    EXPECT_TRUE(same_bits(norm(input), plain(input)));
  });
}

TEST(SyncBatchNorms, DerivativesOfDerivativesAreRefused) {
  run_as_threads(2, [](Group group) {
    torch::nn::BatchNorm1d norm(3);
    SyncBatchNorm sync(norm, group);
    at::Tensor input = values({4, 3}, group.rank()).requires_grad_();
    at::Tensor loss = norm(input).square().sum();
    expect_contains(message_of<InvalidArgument>([&] { loss.backward({}, true, true); }),
                    "create_graph");
  });
}

TEST(SyncBatchNorms, OneValueAChannelIsNamedOnAllRanks) {
  run_as_threads(2, [](Group group) {
    torch::nn::BatchNorm2d norm(3);
    torch::nn::Sequential model(norm);
    SyncBatchNorm sync(model, group);
    at::Tensor one = values({1, 3, 1, 1}, 1);
    expect_contains(message_of<InvalidArgument>([&] {
                      at::Tensor input = group.is_root() ? one : one.narrow(0, 0, 0);
                      (void)at::batch_norm(input, norm->weight, norm->bias, norm->running_mean,
                                           norm->running_var, true, 0.1, 1e-5, false);
                    }),
                    "SyncBatchNorm: 0 got one value per channel over all ranks");
  });
}

TEST(SyncBatchNorms, RefusesWhatItCannotTake) {
  Group group;
  torch::nn::Linear linear(2, 2);
  expect_contains(message_of<InvalidArgument>([&] { SyncBatchNorm sync(linear, group); }),
                  "no BatchNorm1d");
  torch::nn::BatchNorm1d norm(3);
  SyncBatchNorm sync(norm, group);
  expect_contains(message_of<InvalidArgument>([&] { SyncBatchNorm other(norm, group); }),
                  "already belongs to another SyncBatchNorm");
  torch::nn::BatchNorm1d bare(
      torch::nn::BatchNorm1dOptions(3).affine(false).track_running_stats(false));
  expect_contains(message_of<InvalidArgument>([&] { SyncBatchNorm other(bare, group); }),
                  "neither weights nor running statistics");
  run_as_threads(2, [](Group ranks) {
    torch::nn::BatchNorm1d own(ranks.is_root() ? 3 : 4);
    EXPECT_THROW(SyncBatchNorm other(own, ranks), Mismatch);
  });
}

}  // namespace
}  // namespace lockstep
