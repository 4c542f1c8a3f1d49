// Axes of a mesh together: pipelines, data parallelism, sharding and tensor parallelism around one
// GPT, and sequences that are cut, each as one process.
#include "parallel/composition.h"

#include "support/torch/engine_test.h"

#include <lockstep/layout/tensor_slice.h>

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
  for (unsigned set = 1; set < 16; ++set) {
    Composition one;
    for (unsigned i = 0; i < 4; ++i)
      if ((set >> i & 1U) != 0) one.axes.push_back({names[i], 2});
    if (one.axes.size() >= 2) all.push_back(one);
  }
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"fsdp", 2}, {"cp", 2}},
                                            {{"cp", 2}, {"fsdp", 2}, {"tp", 2}},
                                            {{"pp", 2}, {"cp", 2}},
                                            {{"pp", 2}, {"cp", 3}},
                                            {{"pp", 2}, {"dp", 2}, {"cp", 2}},
                                            {{"pp", 2}, {"fsdp", 2}, {"cp", 2}},
                                            {{"pp", 2}, {"cp", 2}, {"tp", 2}}})
    all.push_back({.axes = axes});
  all.push_back({.axes = {{"pp", 2}, {"cp", 2}}, .schedule = "zbv"});
  all.push_back({.axes = {{"pp", 2}, {"cp", 2}}, .context = ContextMethod::ulysses});
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
    for (const Part& part : handle.named_parameters()) {
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

// Grouped queries, and no weight that is tied. The norm is over all axes.
TEST(LlamaCompositions, StepsAreThoseOfOneProcess) {
  models::LlamaOptions options;
  options.layers = 2;
  options.heads = 4;
  options.key_value_heads = 2;
  options.width = 24;
  options.hidden = 40;
  options.block = 13;
  options.vocabulary = 37;
  const auto make = [&] { return models::Llama(options); };
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"tp", 2}},
                                            {{"fsdp", 2}, {"tp", 2}},
                                            {{"pp", 2}, {"fsdp", 2}, {"tp", 2}}}) {
    const Composition how{.axes = axes, .checkpoints = true};
    run_group(Engine::local, ranks_of(how), [&](Group world) {
      auto plain = made_alike(make, at::kDouble);
      Composed<models::Llama> composed(made_alike(make, at::kDouble), std::move(world), how);
      for (int step = 0; step < 2; ++step) {
        const TokenBatch batch(step, 16);
        composed.all().zero_grad();
        plain->zero_grad();
        const at::Tensor expected = plain->loss(batch.ids, batch.targets);
        EXPECT_NEAR(composed.step(batch.ids, batch.targets), expected.item<double>(), 1e-11);
        expected.backward();
        const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
        EXPECT_NEAR(composed.all().clip_grad_norm(1e9), norm, 1e-9 * norm) << text_of(how);
      }
    });
  }
}

TEST(LlamaCompositions, HeadsOfKeysThatDoNotDivideAreOneLine) {
  models::LlamaOptions options;
  options.heads = 4;
  options.key_value_heads = 2;
  const models::Llama model(options);
  try {
    (void)describe(llama_tensor_plan(options), *model, 4);
    ADD_FAILURE() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "parallelize: model.layers.0.self_attn.k_proj.weight: expected a number of heads "
              "divisible by tp, 4, found 2");
  }
}

// Returns the bytes of this rank's part of a parameter before it is sharded, by the plan.
std::int64_t bytes_of_part(const NamedParameter& parameter, int ranks, int rank) {
  const auto& [name, tensor, aliases] = parameter;
  const bool is_row_bias = name.ends_with("c_proj.bias");
  const bool is_cut = !is_row_bias && (name.find("wte") != std::string::npos ||
                                       name.find(".attn.") != std::string::npos ||
                                       name.find(".mlp.") != std::string::npos);
  if (!is_cut) return static_cast<std::int64_t>(tensor.nbytes());
  const bool is_vocabulary = name.find("wte") != std::string::npos;
  const std::int64_t rows = is_vocabulary ? tensor.size(0) : ranks;
  return static_cast<std::int64_t>(tensor.nbytes()) / rows *
         layout::shard_range(rows, ranks, rank).length();
}

// Returns true if the stage, one of `stages` equal ones, has the parameter; the tied embedding is
// in the first and the last stage.
bool is_in_stage(const std::string& name, int stage, int stages) {
  const bool is_first = stage == 0, is_last = stage == stages - 1;
  if (name.find("wte") != std::string::npos) return is_first || is_last;
  if (name.find("wpe") != std::string::npos) return is_first;
  if (name.find("ln_f") != std::string::npos) return is_last;
  const int layer = std::stoi(name.substr(std::string("transformer.h.").size()));
  return layer * stages / static_cast<int>(composed_gpt().layers) == stage;
}

class CompositionMemory : public testing::TestWithParam<Composition> {};

// The formula of docs/reference/composition.md by the handle's counters.
TEST_P(CompositionMemory, ARankKeepsWhatTheFormulaSays) {
  const Composition& how = GetParam();
  run_group(Engine::local, ranks_of(how), [&](Group world) {
    auto plain = made_alike([] { return models::Gpt(composed_gpt()); }, at::kFloat);
    ComposedGpt composed = test::composed(std::move(world), how, at::kFloat);
    const Mesh& mesh = composed.mesh();
    const auto size = [&](const char* name) { return composed.has(name) ? mesh.size(name) : 1; };
    const auto place = [&](const char* name) {
      return composed.has(name) ? mesh.coordinate(name) : 0;
    };
    std::int64_t expected = 0, tensors = 0;
    for (const NamedParameter& parameter : unique_parameters(*plain)) {
      if (!is_in_stage(parameter.name, place("pp"), size("pp"))) continue;
      expected += bytes_of_part(parameter, size("tp"), place("tp"));
      ++tensors;
    }
    const HandleMemory memory = composed.all().memory();
    // Tensors of a unit begin at cache lines, and shards are equally long.
    const std::int64_t padding = size("fsdp") == 1 ? 0 : 64 * (tensors + 12 * size("fsdp"));
    EXPECT_GE(memory.shards + memory.whole, expected / size("fsdp")) << text_of(how);
    EXPECT_LE(memory.shards + memory.whole, (expected + padding) / size("fsdp")) << text_of(how);
    const TokenBatch batch(1, 16);
    (void)composed.step(batch.ids, batch.targets);
    EXPECT_LE(composed.all().memory().gradients, memory.shards + memory.whole + padding)
        << text_of(how);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Axes, CompositionMemory,
    testing::Values(Composition{.axes = {{"tp", 2}}}, Composition{.axes = {{"tp", 4}}},
                    Composition{.axes = {{"fsdp", 2}}}, Composition{.axes = {{"pp", 2}}},
                    Composition{.axes = {{"pp", 4}}}, Composition{.axes = {{"dp", 2}, {"tp", 2}}},
                    Composition{.axes = {{"fsdp", 2}, {"tp", 2}}},
                    Composition{.axes = {{"pp", 2}, {"fsdp", 2}}},
                    Composition{.axes = {{"pp", 2}, {"fsdp", 2}, {"tp", 2}}}),
    [](const testing::TestParamInfo<Composition>& info) {
      std::string name = text_of(info.param);
      for (char& letter : name)
        if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
      return name;
    });

}  // namespace
}  // namespace lockstep
