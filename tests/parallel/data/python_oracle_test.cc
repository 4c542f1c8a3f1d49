// PyTorch's own DistributedDataParallel, under Gloo, on the same weights and batches
// (ddp_oracle.py).
#include "parallel/support.h"

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

// Gradients by "case parameter"; empty for one that is undefined.
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

// One case of ddp_oracle.py, here: rank 0's gradients.
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
    if (!group.is_root()) return;
    for (const auto& [parameter, tensor, aliases, slice, kind] : ddp.named_parameters()) {
      auto& list = results[name + " " + parameter];
      if (!tensor.grad().defined()) continue;
      at::Tensor flat = tensor.grad().contiguous().flatten();
      list.assign(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
    }
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

  ASSERT_EQ(expected.size(), 8U * 6U);
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found[name].size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(found[name][i], values[i], 1e-6 * std::max(1.0, std::abs(values[i])))
          << name << " " << i;
  }
}

}  // namespace
}  // namespace lockstep
