// Operations as test cases: each runs with every list of placements of its arguments, and results
// and gradients are compared with a single process.
#pragma once

#include "tests_of_global.h"

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

using Tensors = std::vector<at::Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

// One operation, or several, with arguments of these sizes.
struct Case {
  std::string name;
  std::vector<std::vector<std::int64_t>> sizes;
  Program run;
};

// All cases of one kind of operation.
struct CasesOfKind {
  std::string kind;
  std::vector<Case> cases;
};
inline void PrintTo(const CasesOfKind& cases, std::ostream* out) { *out << cases.kind; }
[[nodiscard]] std::vector<CasesOfKind> cases_of_operations();

inline void fill_randomly(Tensors& tensors, const Case& one, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& sizes : one.sizes)
    tensors.push_back(at::empty(sizes, at::kDouble).normal_(0, 1, generator));
}

// Results and gradients of a program on plain tensors.
struct Outcome {
  Tensors results, gradients;
};

inline Outcome run_case(const Case& one, Tensors inputs) {
  for (at::Tensor& input : inputs) input.requires_grad_();
  Outcome outcome{one.run(inputs), {}};
  at::Tensor loss;
  double factor = 1;
  for (const at::Tensor& result : outcome.results) {
    at::Tensor term = (result * result).sum() * (factor += 0.5);
    loss = loss.defined() ? loss + term : term;
  }
  loss.backward();
  for (const at::Tensor& input : inputs) outcome.gradients.push_back(input.grad());
  return outcome;
}

inline void expect_same(const Tensors& globals, const Tensors& plains, const std::string& what) {
  ASSERT_EQ(globals.size(), plains.size()) << what;
  for (std::size_t i = 0; i < globals.size(); ++i) {
    ASSERT_TRUE(is_global(globals[i])) << what;
    ASSERT_EQ(globals[i].sizes(), plains[i].sizes()) << what << " " << describe(globals[i]);
    at::Tensor found = full_tensor(globals[i].detach()).cpu();
    ASSERT_TRUE(found.allclose(plains[i].detach().cpu(), 1e-10, 1e-12))
        << what << " " << describe(globals[i]) << "\n"
        << found << plains[i];
  }
}

// Runs the case on the device with every list of placements of its first argument, and some of the
// other arguments. The single process computes on the device `of_one`.
inline void try_case(const Case& one, const Group& world, c10::Device device = c10::kCPU,
                     c10::Device of_one = c10::kCPU) {
  Tensors plains;
  fill_randomly(plains, one, 7);
  Outcome expected;
  {
    Tensors inputs;
    for (const at::Tensor& plain : plains)
      inputs.push_back(plain.to(of_one, plain.scalar_type(), false, /*copy=*/true));
    expected = run_case(one, inputs);
  }
  for (const auto& shape : shapes_of_meshes(world.size())) {
    if (shape.size() > 2) continue;
    Mesh mesh = mesh_of_ranks(world, shape);
    int axes = static_cast<int>(shape.size());
    auto first = all_placements(static_cast<int>(one.sizes[0].size()), axes);
    for (std::size_t i = 0; i < first.size(); ++i) {
      Tensors inputs;
      std::string what = one.name + ":";
      for (std::size_t k = 0; k < plains.size(); ++k) {
        auto mine = all_placements(static_cast<int>(one.sizes[k].size()), axes);
        const Placements& chosen = k == 0 ? first[i] : mine[(i * 7 + k * 3) % mine.size()];
        inputs.push_back(placed(plains[k].to(device), mesh, chosen));
        what += " " + describe(inputs.back());
      }
      try {
        Outcome found = run_case(one, inputs);
        expect_same(found.results, expected.results, what);
        expect_same(found.gradients, expected.gradients, "gradients of " + what);
      } catch (const std::exception& error) {
        ADD_FAILURE() << what << ": " << std::string(error.what()).substr(0, 600);
        return;
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace lockstep::test
