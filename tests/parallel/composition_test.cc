// Axes of a mesh together: pipelines, data, sharded, tensor, context and expert parallelism around
// one model, compared with one process. Prints the rows of the table in docs/composition.md.
#include "parallel/composition.h"

#include "support/difference.h"
#include "support/torch/backend_test.h"

#include <lockstep/layout/tensor_slice.h>
#include <lockstep/module/state_dict.h>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

enum class ParityModel { gpt, llama, moe, sparse_moe };  // sparse: a mixture in every second block

constexpr int steps_of_table = 100;  // of the rows in docs/composition.md
constexpr int steps_of_most = 4;
constexpr int steps_with_gradients = 2;

// The norm to which the gradients of these steps are clipped. Rows of a hundred steps are not
// clipped, because clipping lets rounding differences grow.
double largest_norm(int steps) { return steps == steps_of_table ? 1e9 : 0.5; }

struct ParityRow {
  Composition how;
  ParityModel kind = ParityModel::gpt;
  int steps = steps_of_most;
};

std::string text_of(const ParityRow& row) {
  const bool has_experts = row.kind == ParityModel::moe || row.kind == ParityModel::sparse_moe;
  const std::string model = row.kind == ParityModel::llama ? "llama: " : has_experts ? "moe: " : "";
  return model + test::text_of(row.how);
}

void PrintTo(const ParityRow& row, std::ostream* out) { *out << text_of(row); }

// A Llama with grouped queries and without tied weights.
models::LlamaOptions small_llama() {
  models::LlamaOptions options;
  options.layers = 2;
  options.heads = 4;
  options.key_value_heads = 2;
  options.hidden_size = 24;
  options.intermediate_size = 40;
  options.context_length = 13;
  options.vocabulary = 37;
  return options;
}

// In float64, the capacity of experts is so small that some tokens are dropped.
void with_parity_model(ParityModel kind, at::ScalarType dtype, const auto& action) {
  if (kind == ParityModel::gpt)
    action(made_alike([] { return models::Gpt(composed_gpt()); }, dtype));
  else if (kind == ParityModel::llama)
    action(made_alike([] { return models::Llama(small_llama()); }, dtype));
  else
    action(moe_of(dtype == at::kDouble ? 1 : 0, dtype, kind == ParityModel::moe ? 1 : 2));
}

// The results of one process with all rows. In float32, only the losses are recorded. `state` is
// the state after the steps whose gradients are recorded.
struct Trajectory {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, at::Tensor>> gradients;
  std::map<std::string, at::Tensor> state;
};

std::map<std::string, at::Tensor> tensor_copies(std::map<std::string, at::Tensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
  return tensors;
}

Trajectory trajectory_of(ParityModel kind, at::ScalarType dtype, int steps, int dp_ranks,
                         int micro_batches) {
  Trajectory found;
  with_parity_model(kind, dtype, [&](auto model) {
    found.losses = losses_of_one(model, dtype, steps, dp_ranks, micro_batches, [&](int step) {
      if (dtype != at::kDouble) return;
      if (step < steps_with_gradients) {
        found.gradients.push_back(tensor_copies(gradients_by_name(*model)));
        found.norms.push_back(
            torch::nn::utils::clip_grad_norm_(model->parameters(), largest_norm(steps)));
      } else if (step == steps_with_gradients) {
        found.state = tensor_copies(lockstep::state_dict(*model));
      }
    });
  });
  return found;
}

// The split into micro-batches changes the results of experts only, because each micro-batch drops
// its own tokens.
const Trajectory& expected_trajectory(const ParityRow& row, at::ScalarType dtype) {
  const Composition& how = row.how;
  const bool has_experts = row.kind == ParityModel::moe || row.kind == ParityModel::sparse_moe;
  const int dp_ranks = has_experts ? dp_ranks_of(how) : 1;
  const int parts = has_experts && size_of(how, "pp") > 1 ? how.micro_batches : 1;
  static std::map<std::tuple<ParityModel, at::ScalarType, int, int, int>, Trajectory> known;
  auto& trajectory = known[{row.kind, dtype, row.steps, dp_ranks, parts}];
  if (trajectory.losses.empty())
    trajectory = trajectory_of(row.kind, dtype, row.steps, dp_ranks, parts);
  return trajectory;
}

// Gradients of this rank's parts and their norm, and later the whole model.
void compare_values(Handle& handle, const Trajectory& expected, int step) {
  if (step < steps_with_gradients) {
    const auto at = static_cast<std::size_t>(step);
    expect_gradients_of(handle, expected.gradients[at], 1e-10);
    const double largest = largest_norm(static_cast<int>(expected.losses.size()));
    EXPECT_NEAR(handle.clip_grad_norm(largest), expected.norms[at], 1e-9 * expected.norms[at]);
  } else if (step == steps_with_gradients) {
    const auto found = handle.state_dict();
    EXPECT_EQ(found.size(), expected.state.size());
    for (const auto& [name, tensor] : found)
      expect_close_to(tensor, expected.state.at(name), 1e-9, name);
  }
}

// Ranks that passed the same rows have the same loss, and so all ranks have the same mean.
void expect_losses_of_the_root(Group world, const std::vector<double>& losses) {
  const at::Tensor own = at::tensor(losses, at::kDouble), first = own.clone();
  const int rank = world.rank();
  world.broadcast(first).wait();
  EXPECT_TRUE(own.equal(first)) << "rank " << rank << " differs by "
                                << (own - first).abs().max().item<double>();
}

// Returns the largest relative difference between the losses of the steps and the expected ones.
template <typename Model>
double compare_losses(Composed<Model> composed, at::ScalarType dtype, const Trajectory& expected) {
  Handle& handle = composed.all();
  EXPECT_EQ(handle.group().size(), composed.mesh().group().size());
  const auto optimizer = parity_optimizer(dtype, handle.parameters());
  double largest = 0;
  std::vector<double> losses;
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    const TokenBatch batch(static_cast<int>(step % 7), rows_of_step);
    handle.zero_grad();
    const double loss = composed.step(batch.ids, batch.targets);
    losses.push_back(loss);
    largest = std::max(largest, relative_difference(loss, expected.losses[step]));
    if (dtype == at::kDouble) compare_values(handle, expected, static_cast<int>(step));
    optimizer->step();
  }
  expect_losses_of_the_root(composed.mesh().group(), losses);
  return largest;
}

// Expects every rank to have the losses of one process; returns the difference on the root.
double parity_difference(const ParityRow& row, at::ScalarType dtype) {
  const Trajectory& expected = expected_trajectory(row, dtype);
  const double bound = dtype == at::kDouble ? 1e-12 : 2e-6;
  double largest = 0;
  run_group(
      BackendKind::local, ranks_of(row.how),
      [&](Group world) {
        with_parity_model(row.kind, dtype, [&](auto model) {
          const int rank = world.rank();
          const double own = compare_losses(Composed(std::move(model), std::move(world), row.how),
                                            dtype, expected);
          EXPECT_LE(own, bound) << c10::toString(dtype) << " on rank " << rank;
          if (rank == 0) largest = own;
        });
      },
      std::chrono::seconds(120));
  return largest;
}

class Parity : public testing::TestWithParam<ParityRow> {};

// In float32 only rows of a hundred steps: the code is the same, and the bound of float64 finds
// more.
TEST_P(Parity, StepsAreThoseOfOneProcess) {
  const double in_double = parity_difference(GetParam(), at::kDouble);
  if (GetParam().steps != steps_of_table) return;
  const double in_float = parity_difference(GetParam(), at::kFloat);
  std::cout << "| " << text_of(GetParam()) << " | " << in_float << " | " << in_double << " |\n";
}

// Every set of at least two of the axes pp, dp, fsdp and tp, and some sets with cp.
std::vector<ParityRow> rows_of_gpt() {
  const MeshAxis pp{"pp", 2}, dp{"dp", 2}, fsdp{"fsdp", 2}, tp{"tp", 2}, cp{"cp", 2};
  std::vector<ParityRow> all = {
      {{.axes = {tp}, .sequence = true}},
      {{.axes = {tp}, .checkpoints = true}},
      {{.axes = {{"tp", 4}}}},
      {{.axes = {{"pp", 4}}}},
      {{.axes = {{"dp", 8}}}},
      {{.axes = {tp, dp}}},
      {{.axes = {{"fsdp", 4}, pp}, .micro_batches = 2}},
      {{.axes = {fsdp, tp}, .checkpoints = true}, ParityModel::gpt, steps_of_table},
      {{.axes = {cp}}},
      {{.axes = {fsdp, cp}}},
      {{.axes = {dp, cp, fsdp}}},
      {{.axes = {cp, fsdp, tp}}},
      {{.axes = {tp, cp, pp}}},
      {{.axes = {pp, cp}}},
      {{.axes = {pp, {"cp", 3}}}},
      {{.axes = {pp, dp, cp}}},
      {{.axes = {pp, fsdp, cp}}},
      {{.axes = {pp, cp}, .schedule = "zbv"}},
      {{.axes = {pp, cp}, .context = ContextMethod::ulysses}},
      {{.axes = {pp, fsdp, tp}, .checkpoints = true, .micro_batches = 2}},
      // Axes of size 1, and other orders of axes.
      {{.axes = {cp, {"dp", 1}, tp, pp}}},
      {{.axes = {{"tp", 1}, fsdp, pp, cp}, .schedule = "zbv"}},
      {{.axes = {tp, fsdp, {"pp", 1}, dp}, .micro_batches = 2}}};
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"})
    all.push_back({{.axes = {pp}, .schedule = schedule}});
  for (unsigned set = 1; set < 16; ++set) {
    Composition one;
    for (unsigned i = 0; const MeshAxis& axis : {pp, dp, fsdp, tp})
      if ((set >> i++ & 1U) != 0) one.axes.push_back(axis);
    if (dp_ranks_of(one) == 4) one.micro_batches = 2;
    if (one.axes.size() >= 2) all.push_back({one});
  }
  return all;
}

std::vector<ParityRow> all_rows() {
  constexpr ParityModel moe = ParityModel::moe, llama = ParityModel::llama;
  const MeshAxis pp{"pp", 2}, dp{"dp", 2}, fsdp{"fsdp", 2}, tp{"tp", 2}, cp{"cp", 2}, ep{"ep", 2};
  std::vector<ParityRow> all = rows_of_gpt();
  const std::vector<ParityRow> others = {
      {{.axes = {tp}, .checkpoints = true}, llama},
      {{.axes = {fsdp, tp}, .checkpoints = true}, llama},
      {{.axes = {pp, fsdp, tp}, .checkpoints = true}, llama},
      {{.axes = {ep}}, moe},
      {{.axes = {{"ep", 4}}}, moe},
      {{.axes = {dp}}, moe},
      {{.axes = {fsdp, tp, pp}, .micro_batches = 2}, moe},
      {{.axes = {cp, tp}}, moe},
      {{.axes = {dp, ep}}, moe},
      {{.axes = {dp, ep, tp}}, moe},
      {{.axes = {ep, fsdp}}, moe, steps_of_table},
      {{.axes = {ep, tp}}, moe},
      {{.axes = {ep, tp}, .sequence = true}, moe},
      {{.axes = {ep, fsdp, tp}}, moe},
      {{.axes = {ep, fsdp}, .checkpoints = true}, moe},
      {{.axes = {ep, fsdp}, .level = ShardLevel::optimizer}, moe},
      {{.axes = {pp, ep}, .micro_batches = 2}, moe, steps_of_table},
      {{.axes = {pp, ep}, .schedule = "zb-h1"}, moe},
      {{.axes = {pp, ep}, .checkpoints = true}, ParityModel::sparse_moe},
      {{.axes = {pp, dp, ep}, .micro_batches = 2}, moe},
      {{.axes = {pp, ep, fsdp}, .micro_batches = 2}, moe},
      {{.axes = {pp, ep, tp}, .micro_batches = 2}, moe},
      {{.axes = {cp, ep}}, moe},
      {{.axes = {cp, {"ep", 1}}, .context = ContextMethod::ulysses}, moe},
      {{.axes = {dp, cp, ep}}, moe},
      {{.axes = {ep, cp, tp}}, moe},
      {{.axes = {ep, {"cp", 3}}, .checkpoints = true}, moe},
      {{.axes = {pp, cp, ep}, .micro_batches = 2}, moe},
      {{.axes = {ep, {"tp", 1}, pp, fsdp}, .micro_batches = 2}, moe},
      {{.axes = {fsdp, cp, {"dp", 1}, ep}}, moe},
      {{.axes = {tp, ep, {"cp", 1}, pp}, .micro_batches = 2}, moe}};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(Rows, Parity, testing::ValuesIn(all_rows()),
                         [](const testing::TestParamInfo<ParityRow>& info) {
                           return as_test_name(text_of(info.param));
                         });

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

// Returns true if stage `stage` of `stages` equal stages has the parameter. The tied embedding is
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

// Compares the formula in docs/reference/composition.md with the handle's counters.
TEST_P(CompositionMemory, ARankKeepsWhatTheFormulaSays) {
  const Composition& how = GetParam();
  run_group(BackendKind::local, ranks_of(how), [&](Group world) {
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
    // Padding: tensors of a unit begin at cache lines, and all shards have the same length.
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
    [](const testing::TestParamInfo<Composition>& info) { return test_name_of(info.param); });

}  // namespace
}  // namespace lockstep
