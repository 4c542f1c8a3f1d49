// Ranks with different numbers of batches.
#include <lockstep/parallel/join.h>

#include "parallel/data/hook_support.h"

#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <stdexcept>

namespace lockstep {
namespace {

using namespace test;

const std::vector<std::vector<std::int64_t>> join_shapes = {{4, 3}, {5}, {2, 2}};

// Rank 0 has none; each further rank has two more.
int join_batches(int rank) { return 2 * rank; }

DistributedDataParallelOptions join_options() {
  return {.bucket_bytes = 40, .first_bucket_bytes = 40};
}

torch::optim::SGDOptions join_momentum() {
  torch::optim::SGDOptions options(0.1);
  options.momentum(0.9);
  return options;
}

// The reference in one process: the sum over ranks that have a batch, divided by the number of all
// ranks or of these ranks.
void join_of_one_process(Table& table, torch::optim::SGD& sgd, int ranks, int step, bool by_all) {
  sgd.zero_grad();
  int active = 0;
  for (int rank = 0; rank < ranks; ++rank) active += step < join_batches(rank) ? 1 : 0;
  double divisor = by_all ? ranks : active;
  for (int rank = 0; rank < ranks; ++rank)
    if (step < join_batches(rank))
      (table->loss(gradients_for(*table, rank, step)) / divisor).backward();
  sgd.step();
}

void expect_joined(TableImpl& found, TableImpl& expected, const std::string& where) {
  for (std::size_t i = 0; i < join_shapes.size(); ++i)
    EXPECT_LT(largest_difference(found.weights[i].detach(), expected.weights[i].detach()), 1e-12)
        << where << " " << i;
}

class Joins : public testing::TestWithParam<BackendRanks> {};

TEST_P(Joins, EqualsOneProcess) {
  for (bool by_all : {true, false})
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      Table table(join_shapes, at::kDouble), expected(join_shapes, at::kDouble);
      DistributedDataParallel ddp(table, group, join_options());
      torch::optim::SGD sgd(ddp.parameters(), join_momentum());
      torch::optim::SGD expected_sgd(expected->parameters(), join_momentum());
      for (int epoch = 0; epoch < 2; ++epoch) {
        Join join({&ddp.joinable()}, {.divide_by_initial_world_size = by_all});
        for (int step = 0; step < join_batches(group.rank()); ++step) {
          ddp.zero_grad();
          backward(ddp, *table, step);
          sgd.step();
        }
        int steps = 0;
        join.finish([&] {
          sgd.step();
          ddp.zero_grad();
          ++steps;
        });
        EXPECT_EQ(steps, join_batches(group.size() - 1) - join_batches(group.rank()));
        for (int step = 0; step < join_batches(group.size() - 1); ++step)
          join_of_one_process(expected, expected_sgd, group.size(), step, by_all);
        expect_joined(*table, *expected, "epoch " + std::to_string(epoch));
      }
      // Without a Join, every rank has a batch.
      ddp.zero_grad();
      backward(ddp, *table, 100);
      sgd.step();
      expected_sgd.zero_grad();
      for (int rank = 0; rank < group.size(); ++rank)
        (expected->loss(gradients_for(*expected, rank, 100)) / group.size()).backward();
      expected_sgd.step();
      expect_joined(*table, *expected, "after");
    });
}

TEST_P(Joins, AnAccumulatedGradientOfARankThatHasEndedCounts) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(join_shapes, at::kDouble);
    DistributedDataParallel ddp(table, group, join_options());
    Join join({&ddp.joinable()});
    {
      auto scope = ddp.no_sync();
      backward(ddp, *table, 0);
    }
    bool is_last = group.rank() == group.size() - 1;
    if (is_last) backward(ddp, *table, 1);
    join.finish([] {});
    for (std::size_t i = 0; i < join_shapes.size(); ++i) {
      at::Tensor sum = gradients_for(*table, group.size() - 1, 1)[i];
      for (int rank = 0; rank < group.size(); ++rank) sum += gradients_for(*table, rank, 0)[i];
      EXPECT_LT(largest_difference(table->weights[i].grad(), sum / group.size()), 1e-12);
    }
  });
}

TEST_P(Joins, HooksAndUnusedParametersGoAlong) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table({{12, 10}, {4}}, at::kDouble);
    DistributedDataParallelOptions options = join_options();
    options.find_unused_parameters = true;
    options.hook = power_sgd({.rank = 1, .start_step = 1, .min_compression_rate = 1});
    DistributedDataParallel ddp(table, group, options);
    torch::optim::SGD sgd(ddp.parameters(), join_momentum());
    Join join({&ddp.joinable()});
    for (int step = 0; step < join_batches(group.rank()); ++step) {
      ddp.zero_grad();
      (table->weights[0] * gradients_for(*table, group.rank(), step)[0]).sum().backward();
      EXPECT_FALSE(table->weights[1].grad().defined());  // no rank uses this parameter
      sgd.step();
    }
    join.finish([&] {
      EXPECT_FALSE(table->weights[1].grad().defined());
      sgd.step();
      ddp.zero_grad();
    });
    at::Tensor root = table->weights[0].detach().clone();
    group.broadcast(root).wait();
    EXPECT_TRUE(same_bits(root, table->weights[0]));
  });
}

TEST_P(Joins, BuffersComeFromARankWithInputs) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    ConvNet model;
    fill_parameters(*model, 1);
    DistributedDataParallel ddp(model, group);
    Join join({&ddp.joinable()});
    for (int step = 0; step < join_batches(group.rank()); ++step) {
      ddp.zero_grad();
      image_loss(model->forward(values({5, 36}, group.rank() + 10 * step))).backward();
    }
    join.finish([&] { ddp.zero_grad(); });
    EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(),
              join_batches(group.size() - 1));
    at::Tensor mean = model->norm->running_mean.clone();
    group.broadcast(mean).wait();
    EXPECT_TRUE(same_bits(mean, model->norm->running_mean));
  });
}

TEST_P(Joins, EarlyTerminationEndsAllRanks) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    if (group.size() == 1) return;
    Table table(join_shapes, at::kDouble);
    DistributedDataParallel ddp(table, group, join_options());
    int batches = group.rank() == 0 ? 2 : 5, done = 0;
    auto train = [&] {
      Join join({&ddp.joinable()}, {.throw_on_early_termination = true});
      for (; done < batches; ++done) {
        ddp.zero_grad();
        backward(ddp, *table, done);
      }
      join.finish([] {});
    };
    expect_contains(message_of<EarlyTermination>(train),
                    "the inputs of 1 of " + std::to_string(group.size()) + " ranks have ended");
    EXPECT_EQ(done, 2);
    ddp.zero_grad();
    backward(ddp, *table, 7);
    at::Tensor sum = at::zeros_like(table->weights[0]);
    for (int rank = 0; rank < group.size(); ++rank) sum += gradients_for(*table, rank, 7)[0];
    EXPECT_LT(largest_difference(table->weights[0].grad(), sum / group.size()), 1e-12);
  });
}

TEST_P(Joins, InputsThatEndTogetherAreNoEarlyTermination) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(join_shapes, at::kDouble);
    DistributedDataParallel ddp(table, group);
    Join join({&ddp.joinable()}, {.throw_on_early_termination = true});
    for (int step = 0; step < 3; ++step) backward(ddp, *table, step);
    join.finish([] { ADD_FAILURE() << "no rank has gone on"; });
  });
}

TEST_P(Joins, AMissingGradientIsThatOfRanksWithInputs) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    if (group.size() < 3) return;
    Branches model;
    DistributedDataParallel ddp(model, group, join_options());
    Join join({&ddp.joinable()});
    auto go_on = [&] {
      if (group.rank() == 0) return join.finish([] {});
      model->forward(values({2, 3}, 0), group.rank() == 1 ? "ab" : "abc").sum().backward();
    };
    expect_contains(message_of<ReductionFailed>(go_on),
                    "c.weight (on 1 of " + std::to_string(group.size() - 1) + " ranks");
    ddp.zero_grad();
    if (group.rank() != 0) model->forward(values({2, 3}, 0), "abc").sum().backward();
    join.finish([] {});
    EXPECT_TRUE(model->layers[0]->weight.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Joins, testing::ValuesIn(usual_ranks()), name_of_ranks);

// The forward and backward of the norm run between the gradients of one handle.
struct JoinedNormsImpl : torch::nn::Module {
  JoinedNormsImpl()
      : first(register_module("first", torch::nn::Linear(3, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        second(register_module("second", torch::nn::Linear(4, 2))),
        last(register_module("last", torch::nn::BatchNorm1d(2))) {
    to(at::kDouble);
    fill_parameters(*this, 3);
  }
  at::Tensor forward(const at::Tensor& x) { return last(second(norm(first(x)).relu())); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
  torch::nn::BatchNorm1d last;
};
TORCH_MODULE(JoinedNorms);

at::Tensor join_rows(int rank, int step) {
  return values({rank + 2, 3}, 31 * step + rank).to(at::kDouble);
}

TEST(JoinOfSyncBatchNorm, EqualsOneProcess) {
  for (int size : {1, 2, 3, 5})
    run_as_threads(size, [](Group group) {
      JoinedNorms model, expected;
      SyncBatchNorm sync(model, group);
      DistributedDataParallel ddp(model, group, join_options());
      torch::optim::SGD sgd(ddp.parameters(), join_momentum());
      torch::optim::SGD expected_sgd(expected->parameters(), join_momentum());
      Join join({&ddp.joinable(), &sync.joinable()});
      for (int step = 0; step < join_batches(group.rank()); ++step) {
        ddp.zero_grad();
        model->forward(join_rows(group.rank(), step)).pow(3).sum().backward();
        sgd.step();
      }
      join.finish([&] {
        sgd.step();
        ddp.zero_grad();
      });
      for (int step = 0; step < join_batches(group.size() - 1); ++step) {
        std::vector<at::Tensor> rows;
        for (int rank = 0; rank < group.size(); ++rank)
          if (step < join_batches(rank)) rows.push_back(join_rows(rank, step));
        expected_sgd.zero_grad();
        (expected->forward(at::cat(rows)).pow(3).sum() / group.size()).backward();
        expected_sgd.step();
      }
      auto found_state = model->named_parameters(), expected_state = expected->named_parameters();
      for (const auto& item : expected_state)
        EXPECT_LT(largest_difference(found_state[item.key()].detach(), item.value().detach()),
                  1e-10)
            << item.key();
      for (const auto& item : expected->named_buffers())
        EXPECT_LT(largest_difference(model->named_buffers()[item.key()], item.value()), 1e-10)
            << item.key();
    });
}

TEST(JoinErrors, OtherOrdersAreNamed) {
  run_as_threads(2, [](Group group) {
    Table one(join_shapes, at::kDouble), other(join_shapes, at::kDouble);
    DistributedDataParallel first(one, group), second(other, group.split(0));
    Join join({&first.joinable(), &second.joinable()});
    expect_contains(message_of<Mismatch>([&] {
                      group.is_root() ? backward(first, *one, 0) : backward(second, *other, 0);
                    }),
                    "Join: rank 0 has reached round 0 of DistributedDataParallel, rank 1 round 0");
  });
}

TEST(JoinErrors, RefusesWhatMakesNoSense) {
  Table table(join_shapes, at::kDouble);
  Handle handle = DistributedDataParallel(table, Group());
  EXPECT_THROW(Join({}), InvalidArgument);
  EXPECT_THROW(Join({nullptr}), InvalidArgument);
  Join join({&handle.joinable()});
  join.finish(nullptr);
  expect_contains(message_of<InvalidArgument>([&] { join.finish(nullptr); }),
                  "this Join has ended");
}

// If a hook does not average over all ranks, its result cannot be rescaled to another number of
// ranks.
TEST(JoinErrors, RefusesToDivideWhatAHookDoesNotAverage) {
  Table table(join_shapes, at::kDouble);
  for (const auto& hook : {post_local_sgd({}), bf16_compression(post_local_sgd({}))}) {
    Handle handle = DistributedDataParallel(table, Group(), {.hook = hook});
    expect_contains(message_of<InvalidArgument>([&] {
                      Join join({&handle.joinable()}, {.divide_by_initial_world_size = false});
                    }),
                    "divide_by_initial_world_size");
    Join join({&handle.joinable()});
  }
  Handle handle = DistributedDataParallel(table, Group(), {.hook = bf16_compression()});
  Join join({&handle.joinable()}, {.divide_by_initial_world_size = false});
}

}  // namespace
}  // namespace lockstep
