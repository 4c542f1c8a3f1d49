// A GPT with a sequence that is sharded over ranks: a hundred steps compared with one process,
// combinations with other axes, and the communication volume.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/models/llama.h>
#include <lockstep/module/state_dict.h>

#include "global/mesh_context.h"
#include "parallel/parity_optimizer.h"
#include "parallel/tensor/support.h"
#include "support/difference.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <chrono>
#include <memory>

namespace lockstep {
namespace {

using namespace test;

struct ContextKind {
  ContextMethod method;
  ContextBalance balance;
  const char* name;
};
constexpr ContextKind context_kinds[] = {
    {ContextMethod::ring, ContextBalance::zigzag, "ring, zigzag"},
    {ContextMethod::ring, ContextBalance::contiguous, "ring, contiguous"},
    {ContextMethod::ulysses, ContextBalance::zigzag, "ulysses, zigzag"},
    {ContextMethod::ulysses, ContextBalance::contiguous, "ulysses, contiguous"}};

template <typename Net>
ParallelModel cut_sequences(const Net& model, const Group& ranks, const ContextKind& kind) {
  return parallelize(model, Mesh(ranks, {{"cp", ranks.size()}}),
                     {.context = kind.method, .balance = kind.balance});
}

// Calls the module's own code on sharded sequences.
template <typename Net>
at::Tensor loss_of(Net& model, const ParallelModel& cp, const TokenBatch& batch) {
  const Tensors cut = cp.cut({batch.ids, batch.targets});
  return model->loss(cut[0], cut[1]);
}

class ContextGpt : public BackendTest {};

// The 13 tokens are not divisible by 2 or 3 ranks. Two threads make a hundred steps in float64 and
// in zigzag order.
TEST_P(ContextGpt, AHundredStepsAreThoseOfOneProcess) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const bool is_long = backend() == BackendKind::local && size() == 2 && dtype == at::kDouble;
    const int most = is_long ? 100 : 10;
    const double bound = dtype == at::kFloat ? 2e-6 : 1e-12;
    std::vector<double> expected;
    auto plain = made_alike([] { return models::Gpt(small_gpt()); }, dtype);
    const auto of_plain = parity_optimizer(dtype, plain->parameters());
    for (int step = 0; step < most; ++step) {
      const TokenBatch batch(step % 7);
      of_plain->zero_grad();
      at::Tensor loss = plain->loss(batch.ids, batch.targets);
      loss.backward();
      of_plain->step();
      expected.push_back(loss.item<double>());
    }
    for (const ContextKind& kind : context_kinds) {
      const int steps = kind.balance == ContextBalance::zigzag ? most : 10;
      run(
          [&](Group group) {
            auto model = made_alike([] { return models::Gpt(small_gpt()); }, dtype);
            auto cp = cut_sequences(model, group, kind);
            const auto optimizer = parity_optimizer(dtype, cp.parameters());
            double largest = 0;
            for (int step = 0; step < steps; ++step) {
              const TokenBatch batch(step % 7);
              cp.zero_grad();
              at::Tensor loss = loss_of(model, cp, batch);
              loss.backward();
              optimizer->step();
              const double right = expected[static_cast<std::size_t>(step)];
              largest = std::max(largest, relative_difference(number_of(loss), right));
            }
            EXPECT_LE(largest, bound) << c10::toString(dtype) << ", " << kind.name;
            if (group.is_root())
              std::cout << "CP" << group.size() << ", " << kind.name << ", " << c10::toString(dtype)
                        << ": largest difference " << largest << "\n";
          },
          std::chrono::seconds(90));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextGpt,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::shm, 2)),
                         backend_test_name);

class ContextAndOthers : public BackendTest {};

// The mean loss of two replicas is the mean over the whole batch.
TEST_P(ContextAndOthers, GradientsAreThoseOfOneProcessOnTheWholeBatch) {
  run([&](Group world) {
    const bool has_tp = world.size() == 8;
    const Mesh mesh(world, {{"dp", 2}, {"tp", has_tp ? 2 : 1}, {"cp", -1}});
    for (const ContextKind& kind : context_kinds) {
      auto plain = made_alike([] { return models::Gpt(small_gpt()); }, at::kDouble);
      auto model = made_alike([] { return models::Gpt(small_gpt()); }, at::kDouble);
      auto handle = parallelize(
          model, mesh,
          {.context = kind.method, .balance = kind.balance, .data = {.bucket_bytes = 20000}});
      EXPECT_EQ(handle.group().size(), world.size());
      torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.003));
      torch::optim::AdamW of_plain(plain->parameters(), torch::optim::AdamWOptions(0.003));
      for (int step = 0; step < 3; ++step) {
        const TokenBatch batch(step, 4);
        handle.zero_grad();
        loss_of(model, handle, own_rows(handle.data(), batch)).backward();
        of_plain.zero_grad();
        plain->loss(batch.ids, batch.targets).backward();
        expect_gradients_of(handle, gradients_by_name(*plain), 1e-11);
        const double norm = handle.clip_grad_norm(1e9);
        EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9), 1e-9 * norm);
        adamw.step();
        of_plain.step();
      }
      const auto expected = lockstep::state_dict(*plain);
      for (const auto& [name, tensor] : handle.state_dict())
        expect_close_to(tensor, expected.at(name), 1e-10, name);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextAndOthers,
                         testing::Values(std::tuple(BackendKind::local, 6),
                                         std::tuple(BackendKind::local, 8),
                                         std::tuple(BackendKind::shm, 4)),
                         backend_test_name);

class ContextLlama : public BackendTest {};

// Rotary embeddings get the global positions; queries are grouped.
TEST_P(ContextLlama, LossAndGradientsAreThoseOfOneProcess) {
  run([&](Group group) {
    models::LlamaOptions options;
    options.layers = 2;
    options.heads = 4;
    options.key_value_heads = 2;
    options.hidden_size = 32;
    options.context_length = 13;
    options.vocabulary = 37;
    auto plain = made_alike([&] { return models::Llama(options); }, at::kDouble);
    const TokenBatch batch(2);
    at::Tensor expected = plain->loss(batch.ids, batch.targets);
    expected.backward();
    for (const ContextKind& kind : context_kinds) {
      if (kind.method == ContextMethod::ulysses && options.key_value_heads % group.size() != 0)
        continue;
      auto model = made_alike([&] { return models::Llama(options); }, at::kDouble);
      auto cp = cut_sequences(model, group, kind);
      at::Tensor loss = loss_of(model, cp, batch);
      loss.backward();
      EXPECT_NEAR(number_of(loss), expected.item<double>(), 1e-12);
      expect_gradients_of(cp, gradients_by_name(*plain), 1e-11);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextLlama,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::local, 4)),
                         backend_test_name);

class ContextTraffic : public BackendTest {};

std::pair<Traffic, Traffic> context_traffic(Group group, std::int64_t layers,
                                            const ContextKind& kind) {
  models::GptOptions options = small_gpt(layers, /*bias=*/false);
  options.context_length = 48;
  auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
  auto cp = cut_sequences(model, group, kind);
  const TokenBatch batch(1, 4, 48);
  const Mesh tensors = tensors_of(*model);
  reset_traffic(tensors);
  const at::Tensor loss = loss_of(model, cp, batch);
  const Traffic forward = traffic(tensors);
  reset_traffic(tensors);
  loss.backward();
  return {forward, traffic(tensors)};
}

// Measures the traffic of one additional layer. Gradients of its parameters are averaged on other
// groups.
TEST_P(ContextTraffic, ALayerMovesWhatTheFormulasSay) {
  run([&](Group group) {
    const std::int64_t n = group.size(), activation = 4 * 48 * 48 * 4;
    for (const ContextKind& kind : context_kinds) {
      const auto [forward2, backward2] = context_traffic(group, 2, kind);
      const auto [forward3, backward3] = context_traffic(group, 3, kind);
      const bool is_ring = kind.method == ContextMethod::ring;
      EXPECT_EQ(forward3.messages - forward2.messages, is_ring ? n - 1 : 0);
      EXPECT_EQ(forward3.all_to_alls - forward2.all_to_alls, is_ring ? 0 : 4);
      EXPECT_EQ(forward3.calls() - forward2.calls(), is_ring ? n - 1 : 4) << kind.name;
      EXPECT_EQ(backward3.messages - backward2.messages, is_ring ? 2 * n - 1 : 0);
      EXPECT_EQ(backward3.all_to_alls - backward2.all_to_alls, is_ring ? 0 : 4);
      EXPECT_EQ(backward3.calls() - backward2.calls(), is_ring ? 2 * n - 1 : 4) << kind.name;
      const std::int64_t of_keys = 2 * activation / n, of_heads = activation * (n - 1) / (n * n);
      EXPECT_EQ(forward3.bytes - forward2.bytes, is_ring ? (n - 1) * of_keys : 4 * of_heads);
      EXPECT_EQ(backward3.bytes - backward2.bytes, is_ring ? (2 * n - 1) * of_keys : 4 * of_heads);
    }
  });
}

// All ranks compute the same number of query-key products; without zigzag order, the last rank
// computes the most.
TEST_P(ContextTraffic, InZigzagOrderAllRanksComputeAsMuch) {
  run([&](Group group) {
    models::GptOptions options = small_gpt(2, /*bias=*/false);
    options.context_length = 48;
    for (const ContextKind& kind : context_kinds) {
      if (kind.method == ContextMethod::ulysses) continue;
      auto model = made_alike([&] { return models::Gpt(options); }, at::kFloat);
      auto cp = cut_sequences(model, group, kind);
      const TokenBatch batch(1, 4, 48);
      const at::Tensor loss = loss_of(model, cp, batch);
      const std::int64_t n = group.size(), part = 48 / n, all = 2 * 4 * options.heads;
      const bool is_zigzag = kind.balance == ContextBalance::zigzag;
      const std::int64_t before = group.rank() * part;
      const std::int64_t pairs =
          is_zigzag ? 48 * 49 / 2 / n : part * (part + 1) / 2 + part * before;
      global::MeshContext& context = global::MeshContext::of(tensors_of(*model));
      std::lock_guard lock(context.traffic_mutex);
      EXPECT_EQ(context.scores, all * pairs) << kind.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextTraffic,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::local, 4)),
                         backend_test_name);

class ContextRefuses : public BackendTest {};

TEST_P(ContextRefuses, WhatMakesNoSenseInOneLine) {
  run([&](Group group) {
    auto model = made_alike([] { return models::Gpt(small_gpt()); }, at::kFloat);
    const Mesh mesh(group, {{"cp", 2}});
    const auto with = [&](ContextMethod method) {
      return message_of<Mismatch>([&] { (void)parallelize(model, mesh, {.context = method}); });
    };
    expect_contains(with(group.rank() == 1 ? ContextMethod::ulysses : ContextMethod::ring),
                    "ulysses");
    auto cp = parallelize(model, mesh);
    expect_contains(
        message_of<InvalidArgument>([&] { (void)cp.cut({at::ones({3})}); }),
        "cut: expected a tensor whose dim 1 is the sequence (sequence_dim), found one of 1 "
        "dims");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ContextRefuses,
                         testing::Values(std::tuple(BackendKind::local, 2)), backend_test_name);

}  // namespace
}  // namespace lockstep
