// Random programs of covered operations on tensors in random placements give what they give on
// plain tensors, gradients too.
#include "support/fuzz.h"
#include "support/torch/drawn_numbers.h"
#include "support/torch/ranks.h"
#include "tests_of_global.h"

#include <torch/torch.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

using test::all_placements;
using test::DrawnNumbers;
using test::mesh_of_ranks;
using test::placed;
using test::shapes_of_meshes;

// Tensors of a program are [rows, columns]; each step makes one more.
struct RandomProgram {
  std::int64_t rows, columns;
  std::uint64_t seed;
  int steps;
};

at::Tensor normalized(const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}); }

// An operation that keeps [rows, columns].
at::Tensor one_step(int kind, const at::Tensor& a, const at::Tensor& b, const at::Tensor& square) {
  std::int64_t rows = a.size(0), columns = a.size(1);
  switch (kind) {
    case 0:
      return a + b;
    case 1:
      return a * b;
    case 2:
      return at::relu(a) - 0.5 * b;
    case 3:
      return at::gelu(a);
    case 4:
      return a.mm(square);
    case 5:
      return at::linear(a, square, b.mean(0));
    case 6:
      return a.softmax(-1) * b;
    case 7:
      return normalized(a);
    case 8:
      return a.t().contiguous().t() + b;
    case 9:
      return at::cat({a.narrow(1, 0, columns / 2), b.narrow(1, columns / 2, columns - columns / 2)},
                     1);
    case 10:
      return a - a.mean(0, true);
    case 11:
      return a / (1 + b.pow(2).sum(1, true));
    case 12:
      return a.contiguous().view({-1}).view({rows, columns}).tanh();
    case 13:
      return a.unsqueeze(0).expand({2, rows, columns}).sum(0) * 0.5;
    case 14: {
      auto parts = at::cat({a, b}, 1).chunk(2, 1);
      return parts[0] * parts[1].sigmoid();
    }
    case 15: {
      at::Tensor c = a.clone();
      c.mul_(0.5).add_(b, 0.1);
      return c;
    }
    case 16:
      return at::where(a > b, a, b);
    case 17:
      return a.index_select(0, at::zeros_like(a.select(1, 0)).to(at::kLong)) + b;
    case 18:
      return a.matmul(a.t()).matmul(b) / static_cast<double>(columns * columns);
    default:
      return at::stack({a, b}).mean(0);
  }
}
constexpr int kinds = 20;

struct ProgramOutcome {
  std::vector<at::Tensor> values, gradients;
};

ProgramOutcome run_program(const RandomProgram& program, std::vector<at::Tensor> leaves) {
  DrawnNumbers drawn(program.seed);
  for (at::Tensor& leaf : leaves) leaf.requires_grad_();
  std::vector<at::Tensor> pool = {leaves[0], leaves[1]};
  for (int step = 0; step < program.steps; ++step) {
    int count = static_cast<int>(pool.size());
    const at::Tensor a = pool[static_cast<std::size_t>(drawn.below(count))];
    const at::Tensor b = pool[static_cast<std::size_t>(drawn.below(count))];
    pool.push_back(one_step(drawn.below(kinds), a, b, leaves[2]));
  }
  at::Tensor loss = (pool.back() * pool.back()).sum() + pool[pool.size() - 2].mean();
  loss.backward();
  ProgramOutcome outcome{{pool.begin() + 2, pool.end()}, {}};
  for (const at::Tensor& leaf : leaves)
    outcome.gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::Tensor());
  return outcome;
}

void compare_tensors(const std::vector<at::Tensor>& globals, const std::vector<at::Tensor>& plains,
                     const std::string& what) {
  for (std::size_t i = 0; i < plains.size(); ++i) {
    ASSERT_EQ(globals[i].defined(), plains[i].defined()) << what;
    if (!plains[i].defined()) continue;
    at::Tensor found = full_tensor(globals[i].detach()), expected = plains[i].detach();
    double scale = 1 + expected.abs().max().item<double>();
    ASSERT_LT((found - expected).abs().max().item<double>(), 1e-9 * scale)
        << what << " of tensor " << i << ", " << describe(globals[i]);
  }
}

void try_program(const RandomProgram& program, const Group& world, const std::vector<int>& shape) {
  at::Generator generator = at::detail::createCPUGenerator(program.seed);
  auto draw = [&](std::int64_t a, std::int64_t b) {
    return at::empty({a, b}, at::kDouble).normal_(0, 1, generator);
  };
  std::vector<at::Tensor> plains = {draw(program.rows, program.columns),
                                    draw(program.rows, program.columns),
                                    draw(program.columns, program.columns)};
  Mesh mesh = mesh_of_ranks(world, shape);
  DrawnNumbers drawn(program.seed + 1);
  auto all = all_placements(2, static_cast<int>(shape.size()));
  std::vector<at::Tensor> globals, copies;
  std::string what = "seed " + std::to_string(program.seed);
  for (const at::Tensor& plain : plains) {
    const auto& chosen = all[static_cast<std::size_t>(drawn.below(static_cast<int>(all.size())))];
    globals.push_back(placed(plain, mesh, chosen));
    copies.push_back(plain.clone());
    what += ", " + describe(globals.back());
  }
  ProgramOutcome expected = run_program(program, copies);
  ProgramOutcome found;
  try {
    found = run_program(program, globals);
    compare_tensors(found.values, expected.values, "values: " + what);
    compare_tensors(found.gradients, expected.gradients, "gradients: " + what);
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": " << std::string(error.what()).substr(0, 500);
  }
}

void try_random_program(test::Random& random, test::Engine engine) {
  int ranks = 1 + static_cast<int>(test::below(random, 4));
  auto shapes = shapes_of_meshes(ranks);
  std::vector<int> shape = shapes[test::below(random, shapes.size())];
  RandomProgram program{.rows = static_cast<std::int64_t>(1 + test::below(random, 7)),
                        .columns = static_cast<std::int64_t>(2 + test::below(random, 5)),
                        .seed = random(),
                        .steps = 2 + static_cast<int>(test::below(random, 8))};
  test::run_group(engine, ranks, [&](Group world) { try_program(program, world, shape); });
}

TEST(RandomPrograms, OnGlobalTensorsGiveThePlainResult) {
  for (test::FuzzRounds rounds("global_programs", 20); rounds.next();)
    try_random_program(rounds.random(), test::Engine::local);
}

TEST(RandomPrograms, OfProcessesGiveThePlainResult) {
  test::Random random(20);
  for (int round = 0; round < 10 && !testing::Test::HasFailure(); ++round)
    try_random_program(random, test::Engine::shm);
}

}  // namespace
}  // namespace lockstep
