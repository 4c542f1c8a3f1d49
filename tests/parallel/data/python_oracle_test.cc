// Compares with PyTorch's DistributedDataParallel under Gloo, on the same weights and batches
// (ddp_oracle.py).
#include "parallel/support.h"

#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "support/python.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

namespace lockstep {
namespace {

using namespace test;

// Gradients by "case parameter"; empty if the gradient is undefined.
using Gradients = std::map<std::string, std::vector<double>>;

Gradients parse(const std::string& output) {
  Gradients gradients;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string of_case, parameter;
    words >> of_case >> parameter;
    auto& values = gradients[of_case + " " + parameter];
    for (double value; words >> value;) values.push_back(value);
  }
  return gradients;
}

struct Step {
  bool averaged = true;
  std::vector<std::string> paths;  // by rank
};

void keep_gradients(const std::string& name, const Handle& handle, Gradients& results) {
  for (const auto& [parameter, tensor, aliases, slice, kind, shard_group, offset] :
       handle.named_parameters()) {
    auto& list = results[name + " " + parameter];
    if (!tensor.grad().defined()) continue;
    at::Tensor flat = tensor.grad().contiguous().flatten();
    list.assign(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
}

// Runs one case of ddp_oracle.py with our DistributedDataParallel, and adds rank 0's gradients to
// `results`.
void run_case(const std::string& name, bool find_unused, const std::vector<Step>& steps,
              Gradients& results) {
  run_as_threads(2, [&](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = find_unused});
    for (const Step& step : steps) {
      std::optional<NoSync> scope;
      if (!step.averaged) scope.emplace(ddp.no_sync());
      at::Tensor x = values({2, 3}, group.rank());
      model->forward(x, step.paths[static_cast<std::size_t>(group.rank())])
          .square()
          .sum()
          .backward();
    }
    if (group.is_root()) keep_gradients(name, ddp, results);
  });
}

// One of its hooks.
void run_hook(const std::string& name,
              const std::function<std::shared_ptr<CommunicationHook>()>& make, Gradients& results) {
  run_as_threads(2, [&](Group group) {
    torch::nn::Linear layer(10, 12);
    auto hook = make();
    DistributedDataParallel ddp(layer, group, {.hook = hook});
    if (name == "power")
      hook->load_state({{"step", at::zeros({1}, at::kLong)}, {"q.weight", values({10, 1}, 3)}});
    for (int step = 0; step < 6; ++step) {
      ddp.zero_grad();
      at::Tensor x = values({3, 10}, 10 * step + group.rank());
      at::Tensor factor = values({3, 12}, 10 * step + 5 + group.rank());
      (layer(x) * factor).sum().backward();
    }
    if (group.is_root()) keep_gradients(name, ddp, results);
  });
}

TEST(PythonOracle, GradientsAreThoseOfPyTorchsDistributedDataParallel) {
  if (!python()) GTEST_SKIP() << no_python;
  auto script = std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "tests/parallel/data/ddp_oracle.py";
  PythonResult python =
      run_python("import runpy, sys; runpy.run_path(sys.argv[1])", {script.string()});
  ASSERT_EQ(python.exit_code, 0);
  Gradients expected = parse(python.output);

  Gradients found;
  run_case("plain", false, {{true, {"abc", "abc"}}}, found);
  run_case("accumulated", false, {{false, {"abc", "acb"}}, {true, {"cba", "abc"}}}, found);
  for (std::string suffix : {"", "_view"}) {
    run_case("unused" + suffix, true, {{true, {"a", "ab"}}}, found);
    run_case("kept" + suffix, true, {{true, {"abc", "abc"}}, {true, {"a", "ab"}}}, found);
    run_case("paused" + suffix, true, {{false, {"b", "c"}}, {true, {"ab", "a"}}}, found);
  }

  run_hook(
      "bf16", [] { return bf16_compression(); }, found);
  run_hook(
      "fp16", [] { return fp16_compression(); }, found);
  auto power = [] { return power_sgd({.rank = 1, .start_step = 2, .min_compression_rate = 1}); };
  run_hook("power", power, found);

  ASSERT_EQ(expected.size(), 8U * 6U + 3U * 2U);
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found[name].size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(found[name][i], values[i], 1e-6 * std::max(1.0, std::abs(values[i])))
          << name << " " << i;
  }
}

}  // namespace
}  // namespace lockstep
