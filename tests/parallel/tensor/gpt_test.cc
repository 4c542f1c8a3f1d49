// A GPT under tensor parallelism: a hundred steps compared with one process, and the communication
// volume.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/global/linear_cross_entropy.h>

#include "parallel/parity_optimizer.h"
#include "parallel/tensor/support.h"
#include "support/difference.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace lockstep {
namespace {

using namespace test;

constexpr int gpt_steps = 100;

std::vector<double> losses_of_one_process(at::ScalarType dtype) {
  auto model = made_alike([] { return models::Gpt(small_gpt()); }, dtype);
  const auto optimizer = parity_optimizer(dtype, model->parameters());
  std::vector<double> losses;
  for (int step = 0; step < gpt_steps; ++step) {
    const TokenBatch batch(step % 7);
    optimizer->zero_grad();
    at::Tensor loss = model->loss(batch.ids, batch.targets);
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

double largest_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    largest = std::max(largest, relative_difference(found[i], expected[i]));
  return largest;
}

using TokenLoss = std::function<at::Tensor(models::Gpt&, const TokenBatch&)>;

const TokenLoss model_loss = [](models::Gpt& model, const TokenBatch& batch) {
  return model->loss(batch.ids, batch.targets);
};
const TokenLoss fused_loss = [](models::Gpt& model, const TokenBatch& batch) {
  return linear_cross_entropy(model->transformer->forward(batch.ids),
                              model->transformer->wte->weight, batch.targets, {.rows = 7});
};

class TensorGpt : public BackendTest {};

// Makes a hundred steps in float64 with each loss and each layout of sequences; other cases make
// ten.
TEST_P(TensorGpt, AHundredStepsAreThoseOfOneProcess) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const std::vector<double> expected = losses_of_one_process(dtype);
    const double bound = dtype == at::kFloat ? 2e-6 : 1e-12;
    for (const bool sequence : {false, true})
      for (const TokenLoss* loss : {&model_loss, &fused_loss}) {
        const bool is_long = backend() == BackendKind::local && dtype == at::kDouble &&
                             sequence == (loss == &fused_loss);
        const int steps = is_long ? gpt_steps : 10;
        run(
            [&](Group group) {
              auto model = made_alike([] { return models::Gpt(small_gpt()); }, dtype);
              auto tp = parallelize(model, Mesh(group, {{"tp", group.size()}}),
                                    {.sequence_parallel = sequence});
              const auto optimizer = parity_optimizer(dtype, tp.parameters());
              std::vector<double> losses;
              for (int step = 0; step < steps; ++step) {
                tp.zero_grad();
                at::Tensor value = (*loss)(model, TokenBatch(step % 7));
                value.backward();
                optimizer->step();
                losses.push_back(number_of(value));
              }
              const double difference = largest_difference(losses, expected);
              EXPECT_LE(difference, bound)
                  << c10::toString(dtype) << (sequence ? ", sequence parallel" : "");
              if (group.is_root())
                std::cout << c10::toString(dtype) << (sequence ? ", sequence parallel" : "")
                          << (loss == &fused_loss ? ", fused loss" : "") << ": largest difference "
                          << difference << "\n";
            },
            std::chrono::seconds(60));
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorGpt,
                         testing::Values(std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::shm, 2)),
                         backend_test_name);

// Counts the collectives of a forward and of a backward.
std::pair<Traffic, Traffic> traffic_of(Group group, std::int64_t layers, bool sequence) {
  const models::GptOptions options = small_gpt(layers, /*bias=*/false);
  auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
  auto tp =
      parallelize(model, Mesh(group, {{"tp", group.size()}}), {.sequence_parallel = sequence});
  const Mesh tensors = tensors_of(*model);
  const TokenBatch batch(1);
  reset_traffic(tensors);
  at::Tensor loss = model->loss(batch.ids, batch.targets);
  const Traffic forward = traffic(tensors);
  reset_traffic(tensors);
  loss.backward();
  return {forward, traffic(tensors)};
}

class TensorTraffic : public BackendTest {};

// Shoeybi et al.: two all_reduces of the activations in forward and two in backward.
TEST_P(TensorTraffic, ALayerHasTheTextbooksCollectives) {
  run([&](Group group) {
    const auto [forward2, backward2] = traffic_of(group, 2, false);
    const auto [forward3, backward3] = traffic_of(group, 3, false);
    EXPECT_EQ(forward3.all_reduces - forward2.all_reduces, 2);
    EXPECT_EQ(backward3.all_reduces - backward2.all_reduces, 2);
    EXPECT_EQ(forward3.calls() - forward2.calls(), 2);
    EXPECT_EQ(backward3.calls() - backward2.calls(), 2);
    const std::int64_t activation = 4 * 13 * 48 * 4, n = group.size();
    EXPECT_EQ(forward3.bytes - forward2.bytes, 2 * (2 * activation * (n - 1) / n));
    EXPECT_EQ(backward3.bytes - backward2.bytes, 2 * (2 * activation * (n - 1) / n));
  });
}

// Korthikanti et al.: each all_reduce becomes a reduce_scatter and an all_gather. The two remaining
// all_reduces of backward sum the gradients of the two norms, 48 numbers each.
TEST_P(TensorTraffic, ALayerThatIsSequenceParallelTooHasPairs) {
  run([&](Group group) {
    const auto [forward2, backward2] = traffic_of(group, 2, true);
    const auto [forward3, backward3] = traffic_of(group, 3, true);
    EXPECT_EQ(forward3.all_gathers - forward2.all_gathers, 2);
    EXPECT_EQ(forward3.reduce_scatters - forward2.reduce_scatters, 2);
    EXPECT_EQ(forward3.calls() - forward2.calls(), 4);
    EXPECT_EQ(backward3.all_gathers - backward2.all_gathers, 2);
    EXPECT_EQ(backward3.reduce_scatters - backward2.reduce_scatters, 2);
    EXPECT_EQ(backward3.all_reduces - backward2.all_reduces, 2);
    EXPECT_EQ(backward3.calls() - backward2.calls(), 6);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorTraffic,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::local, 4)),
                         backend_test_name);

}  // namespace
}  // namespace lockstep
