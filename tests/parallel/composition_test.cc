// Axes of a mesh together: pipelines, data parallelism, sharding and tensor parallelism around one
// GPT, each as one process.
#include "parallel/composition.h"

#include "support/torch/engine_test.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>

namespace lockstep {
namespace {

using namespace test;

std::vector<Composition> pairs_and_triples() {
  std::vector<Composition> all;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"})
    all.push_back({.axes = {{"pp", 2}}, .schedule = schedule});
  all.push_back({.axes = {{"pp", 4}}});
  all.push_back({.axes = {{"tp", 4}}});
  all.push_back({.axes = {{"tp", 2}}, .sequence = true});
  const std::vector<std::string> names = {"pp", "dp", "fsdp", "tp"};
  for (unsigned set = 1; set < 15; ++set) {
    Composition one;
    for (unsigned i = 0; i < 4; ++i)
      if ((set >> i & 1U) != 0) one.axes.push_back({names[i], 2});
    if (one.axes.size() >= 2) all.push_back(one);
  }
  return all;
}

// Gradients of all ranks' parts in two steps, their norm, and the model afterwards.
void compare(Group world, const Composition& how) {
  auto plain = made_alike([] { return models::Gpt(composed_gpt()); }, at::kDouble);
  ComposedGpt composed = test::composed(world, how, at::kDouble);
  Handle& handle = composed.all();
  EXPECT_EQ(handle.group().size(), world.size());
  torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.003));
  torch::optim::AdamW of_plain(plain->parameters(), torch::optim::AdamWOptions(0.003));
  for (int step = 0; step < 2; ++step) {
    const TokenBatch batch(step, 16);
    handle.zero_grad();
    const double loss = composed.step(batch.ids, batch.targets);
    of_plain.zero_grad();
    const at::Tensor expected = plain->loss(batch.ids, batch.targets);
    expected.backward();
    EXPECT_NEAR(loss, expected.item<double>(), 1e-11) << text_of(how);
    for (const NamedPart& part : handle.named_parameters()) {
      if (part.name == "(none)") continue;
      const auto gradients = gradients_by_name(*plain);
      ASSERT_TRUE(part.tensor.grad().defined()) << text_of(how) << ": " << part.name;
      expect_close_to(dispatch::values_of(part.tensor.grad()).reshape({-1}),
                      cut_part(gradients.at(part.name), part), 1e-10,
                      text_of(how) + ": " + part.name);
    }
    const double norm = handle.clip_grad_norm(1e9);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9), 1e-9 * norm)
        << text_of(how);
    adamw.step();
    of_plain.step();
  }
  const auto expected = lockstep::state_dict(*plain);
  const auto found = handle.state_dict();
  EXPECT_EQ(found.size(), expected.size()) << text_of(how);
  for (const auto& [name, tensor] : found)
    expect_close_to(tensor, expected.at(name), 1e-9, text_of(how) + ": " + name);
}

class Compositions : public testing::TestWithParam<Composition> {};

TEST_P(Compositions, StepsAreThoseOfOneProcess) {
  run_group(
      Engine::local, ranks_of(GetParam()),
      [&](Group world) { compare(std::move(world), GetParam()); }, std::chrono::seconds(60));
}

INSTANTIATE_TEST_SUITE_P(Axes, Compositions, testing::ValuesIn(pairs_and_triples()),
                         [](const testing::TestParamInfo<Composition>& info) {
                           std::string name = text_of(info.param);
                           for (char& letter : name)
                             if (std::isalnum(static_cast<unsigned char>(letter)) == 0)
                               letter = '_';
                           return name;
                         });

}  // namespace
}  // namespace lockstep
