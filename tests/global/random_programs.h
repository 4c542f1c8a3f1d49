// Random programs of supported operations on tensors with random placements, compared with the same
// programs on plain tensors.
#pragma once

#include "global/tests_of_global.h"
#include "support/fuzz.h"
#include "support/torch/drawn_numbers.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace lockstep::test {

// Tensors of a program are [rows, columns]; each step creates one more.
struct RandomProgram {
  std::int64_t rows, columns;
  std::uint64_t seed;
  int steps;
};

using T = const at::Tensor&;
// Returns a tensor [rows, columns], given two such tensors and one tensor [columns, columns].
using ProgramStep = at::Tensor (*)(T a, T b, T square);

inline at::Tensor first_index(T a) { return at::zeros_like(a.select(1, 0)).to(at::kLong); }
// Returns values that increase along a row, so that rounding cannot change their order.
inline at::Tensor increasing(T a) { return a.sigmoid() + at::ones_like(a).cumsum(1) * 1.5; }
// Returns a tensor [rows, 1, 1, columns].
inline at::Tensor as_images(T a) { return a.contiguous().view({a.size(0), 1, 1, a.size(1)}); }
inline at::Tensor as_heads(T a) { return a.contiguous().view({1, 1, a.size(0), a.size(1)}); }

inline const std::vector<ProgramStep> elementwise_steps = {
    [](T a, T b, T) { return a + b; },
    [](T a, T b, T) { return a * b; },
    [](T a, T b, T) { return at::relu(a) - 0.5 * b; },
    [](T a, T, T) { return at::gelu(a); },
    [](T a, T b, T) { return at::where(a > b, a, b); },
    [](T a, T b, T) { return a.masked_fill(b > 0.5, 0.25); },
    [](T a, T b, T) { return at::lerp(a, b, 0.3) - at::smooth_l1_loss(a, b, 0); },
    [](T a, T b, T) {
      at::Tensor c = a.clone();
      c.mul_(0.5).add_(b, 0.1);
      return c;
    },
    [](T a, T b, T) {
      return at::_foreach_add({a, b}, {b, a}, 0.5)[0];
    },
    [](T a, T b, T) { return a.to(at::kFloat).to(at::kDouble).mul(0) + b; },
};

inline const std::vector<ProgramStep> view_steps = {
    [](T a, T b, T) { return a.t().contiguous().t() + b; },
    [](T a, T, T) {
      return a.contiguous().view({-1}).view({a.size(0), a.size(1)}).tanh();
    },
    [](T a, T, T) {
      return a.contiguous().view({a.size(1), a.size(0)}).t();
    },
    [](T a, T, T) {
      return a.unsqueeze(0).expand({2, a.size(0), a.size(1)}).sum(0) * 0.5;
    },
    [](T a, T b, T) {
      return at::stack({a, b}).mean(0);
    },
    [](T a, T b, T) {
      std::int64_t columns = a.size(1);
      return at::cat({a.narrow(1, 0, columns / 2), b.narrow(1, columns / 2, columns - columns / 2)},
                     1);
    },
    [](T a, T b, T) {
      auto parts = at::cat({a, b}, 1).chunk(2, 1);
      return parts[0] * parts[1].sigmoid();
    },
    [](T a, T b, T) {
      auto parts = at::cat({a, b}).split(std::max<std::int64_t>(a.size(0), 1));
      if (parts.size() < 2) return a * b;
      return parts[1] - 0.5 * parts[0];
    },
    [](T a, T b, T) {  // writes through views in the same memory
      at::NoGradGuard no_grad;
      at::Tensor c = a.detach().clone();
      c.t().mul_(0.5);
      c.unsqueeze(0).add_(b.detach());
      at::AutoGradMode with_gradients(true);
      return c + a;
    },
    [](T a, T b, T) { return a.flip(0) + b.roll(1, 1); },
    [](T a, T b, T) {
      return a.repeat({2, 1}).slice(0, a.size(0)) * b;
    },
};

inline const std::vector<ProgramStep> mixing_steps = {
    [](T a, T, T square) { return a.mm(square); },
    [](T a, T b, T square) { return at::linear(a, square, b.mean(0)); },
    [](T a, T b, T) { return a.matmul(a.t()).matmul(b) / static_cast<double>(a.numel()); },
    [](T a, T b, T) { return a.softmax(-1) * b; },
    [](T a, T b, T) { return a.log_softmax(0) * 0.1 + b.log_softmax(1) * 0.1; },
    [](T a, T, T) { return a - a.mean(0, true); },
    [](T a, T b, T) { return a / (1 + b.pow(2).sum(1, true)); },
    [](T a, T b, T) { return a / (1 + b.norm()) + at::linalg_vector_norm(b, 2, 1, true); },
    [](T a, T b, T) { return a.logsumexp(1, true) * 0.1 + b.var(0, false) * 0.1; },
    [](T a, T b, T) { return std::get<0>(increasing(a).max(1, true)) * b; },
    [](T a, T, T) { return std::get<0>(increasing(a).topk(a.size(1), 1)); },
    [](T a, T b, T) { return a.cumsum(1) * 0.1 + b; },
    [](T a, T b, T) {
      if (a.size(0) == 0) return a * b;
      return at::scaled_dot_product_attention(as_heads(a), as_heads(b), as_heads(a))
          .view({a.size(0), a.size(1)});
    },
};

inline const std::vector<ProgramStep> layer_steps = {
    [](T a, T, T) { return at::layer_norm(a, {a.size(1)}); },
    [](T a, T b, T) { return a * (b.pow(2).mean(-1, true) + 1e-2).rsqrt(); },
    [](T a, T, T) {
      std::int64_t groups = a.size(1) % 2 == 0 ? a.size(1) / 2 : 1;
      return at::group_norm(a, groups, {}, {}, 1e-2);
    },
    [](T a, T b, T) {
      at::Tensor weight = b.mean(0) + 1;
      return at::batch_norm(a, weight, {}, {}, {}, true, 0.1, 1e-2, false);
    },
    [](T a, T, T square) {
      std::int64_t columns = a.size(1);
      at::Tensor weight = square.narrow(0, 0, 2).contiguous().view({2, 1, 1, columns});
      const std::vector<std::int64_t> padding = {0, columns / 2};
      at::Tensor y = at::conv2d(as_images(a), weight, {}, 1, at::IntArrayRef(padding));
      return y.narrow(3, 0, columns).sum(1).view({a.size(0), columns});
    },
    [](T a, T, T) {
      at::Tensor y = at::avg_pool2d(as_images(a), {1, 3}, {1, 1}, {0, 1});
      at::Tensor z = at::max_pool2d(as_images(increasing(a)), {1, 3}, {1, 1}, {0, 1});
      return (y + z).view({a.size(0), a.size(1)});
    },
    [](T a, T, T square) { return at::embedding(square, first_index(a)) + a; },
    [](T a, T b, T) { return a.index_select(0, first_index(a)) + b; },
    [](T a, T b, T) { return a.gather(1, at::zeros_like(b).to(at::kLong)) * 0.5; },
    [](T a, T b, T) { return at::cross_entropy_loss(a, first_index(a)).sigmoid() * b; },
    [](T a, T b, T) { return at::mse_loss(a, b).tanh() * a; },
};

inline const std::vector<ProgramStep> activation_steps = {
    [](T a, T b, T) { return at::softplus(a) + at::elu(b); },
    [](T a, T b, T) { return at::celu(a, 0.5) - at::selu(b); },
    [](T a, T b, T) { return at::hardtanh(a) * at::relu6(b); },
    [](T a, T b, T) { return at::hardsigmoid(a) * at::hardswish(b); },
    [](T a, T b, T) { return at::softshrink(a) + at::hardshrink(b) * at::threshold(a, 0.1, 1); },
    [](T a, T b, T) { return at::log_sigmoid(a) + at::mish(b) * at::silu(a); },
    [](T a, T b, T) {
      return at::glu(at::cat({a, b}, 1), 1);
    },
    [](T a, T b, T) { return at::prelu(a, b.mean(0)); },
    [](T a, T b, T) { return a.masked_fill(b > 0.5, b.mean()); },
    [](T a, T b, T) {
      return at::constant_pad_nd(a, {1, 1, 0, 2}, 0.5).narrow(0, 0, a.size(0)).slice(1, 2) + b;
    },
};

inline const std::vector<ProgramStep> cumulative_steps = {
    [](T a, T b, T) { return a.tanh().cumprod(1) + b.relu().cumprod(0) * 0.1; },
    [](T a, T b, T) {
      return std::get<0>(increasing(a).cummax(1)) * std::get<0>(increasing(-b).cummin(1));
    },
    [](T a, T b, T) { return a.logcumsumexp(1) * 0.1 + b.logcumsumexp(0) * 0.1; },
    [](T a, T b, T) { return a.nansum(1, true) * 0.1 + b.nansum() * 0.01 + a; },
    [](T a, T b, T) { return a * (b > 0.5).count_nonzero(at::IntArrayRef({0})) * 0.1; },
    [](T a, T b, T) {
      return std::get<0>(increasing(a).median(1, true)) * b + b.detach().median();
    },
    [](T a, T b, T) { return std::get<0>(increasing(a).kthvalue(1, 1, true)) * b; },
    [](T a, T b, T) {
      return std::get<0>(increasing(aminmax_has_gradient ? a : a.detach()).aminmax(1, true)) * b;
    },
    [](T a, T b, T) { return a.masked_select(b > 0).sum() * 0.1 + b; },
    [](T a, T b, T) { return a.take(first_index(b)).sum() * 0.1 + b; },
    [](T a, T b, T) { return at::one_hot(increasing(b).argmax(1), b.size(1)) * a; },
};

inline const std::vector<ProgramStep> diagonal_steps = {
    [](T a, T b, T) { return a.diagonal().sum() * 0.1 + b.diagonal(1).mean() * a; },
    [](T a, T b, T) { return a.diag_embed().sum(1) - b.diag_embed(1, 0, 2).sum(2).t().mean(); },
    [](T a, T b, T) { return a.tril(-1) + b.triu(1) + a.trace() * 0.1; },
    [](T a, T b, T) {
      return at::constant_pad_nd(a.unfold(1, 2, 1).mean(2), {1, 0}) + b;
    },
    [](T a, T b, T square) { return b.mean(0).matmul(square) + a.matmul(b.mean(0)).unsqueeze(1); },
    [](T a, T b, T) {
      at::Tensor c = a * 2, d = b * 1;
      return c.unsqueeze_(0).transpose_(0, 1).squeeze_(1) + d.t_().swapdims_(0, 1);
    },
    [](T a, T b, T) {  // a write through a view
      at::Tensor c = a * 2;
      c.t().add_(b.t());
      return c.tanh();
    },
};

inline std::vector<ProgramStep> all_steps() {
  std::vector<ProgramStep> all;
  for (const auto& some : {elementwise_steps, view_steps, mixing_steps, layer_steps,
                           activation_steps, cumulative_steps, diagonal_steps})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

// Draws placements, equal on every rank, including blocks of a dim and nested shards.
inline Placements draw_placements(DrawnNumbers& drawn, std::size_t axes) {
  Placements all;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    int kind = drawn.below(6);
    if (kind == 0) {
      all.emplace_back(Replicate());
    } else if (kind == 1) {
      all.emplace_back(Partial());
    } else {
      all.emplace_back(
          Shard(kind % 2, kind < 4 ? 1 : 1 + drawn.below(3)).zigzag(drawn.below(3) == 0));
    }
  }
  return all;
}

// Redistributes some global tensors to random placements, if these fit.
inline at::Tensor moved_somewhere(T x, DrawnNumbers& drawn) {
  bool moves = drawn.below(3) == 0;
  if (!is_global(x) || !moves) return x;
  Placements to = draw_placements(drawn, placements(x).size());
  try {
    return redistribute(x, to);
  } catch (const InvalidArgument&) {  // the parts do not divide the dim
    return x;
  }
}

struct ProgramOutcome {
  std::vector<at::Tensor> values, gradients;
};

inline ProgramOutcome run_program(const RandomProgram& program, std::vector<at::Tensor> leaves) {
  DrawnNumbers drawn(program.seed), moves(program.seed + 2);
  static const std::vector<ProgramStep> steps = all_steps();
  for (at::Tensor& leaf : leaves) leaf.requires_grad_();
  std::vector<at::Tensor> pool = {leaves[0], leaves[1]};
  for (int step = 0; step < program.steps; ++step) {
    int count = static_cast<int>(pool.size());
    const at::Tensor a = pool[static_cast<std::size_t>(drawn.below(count))];
    const at::Tensor b = pool[static_cast<std::size_t>(drawn.below(count))];
    ProgramStep run = steps[static_cast<std::size_t>(drawn.below(static_cast<int>(steps.size())))];
    pool.push_back(run(moved_somewhere(a, moves), b, leaves[2]));
  }
  at::Tensor loss = (pool.back() * pool.back()).sum() + pool[pool.size() - 2].mean();
  loss.backward();
  ProgramOutcome outcome{{pool.begin() + 2, pool.end()}, {}};
  for (const at::Tensor& leaf : leaves)
    outcome.gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::Tensor());
  return outcome;
}

inline void compare_tensors(const std::vector<at::Tensor>& globals,
                            const std::vector<at::Tensor>& plains, const std::string& what) {
  for (std::size_t i = 0; i < plains.size(); ++i) {
    ASSERT_EQ(globals[i].defined(), plains[i].defined()) << what;
    if (!plains[i].defined()) continue;
    const at::Tensor found = full_tensor(globals[i].detach()).cpu();
    const at::Tensor expected = plains[i].detach().cpu();
    ASSERT_EQ(found.sizes(), expected.sizes()) << what << " of tensor " << i;
    if (expected.numel() == 0) continue;
    double scale = 1 + expected.nan_to_num(0, 0, 0).abs().max().item<double>();
    ASSERT_TRUE(found.allclose(expected, 0, 1e-9 * scale, /*equal_nan=*/true))
        << what << " of tensor " << i << ", " << describe(globals[i]);
  }
}

// Runs a program on global tensors of `device`, and compares it with the plain program on the
// device `of_one`.
inline void try_program(const RandomProgram& program, const Group& world,
                        const std::vector<int>& shape, c10::Device device = c10::kCPU,
                        c10::Device of_one = c10::kCPU) {
  at::Generator generator = at::detail::createCPUGenerator(program.seed);
  auto draw = [&](std::int64_t a, std::int64_t b) {
    return at::empty({a, b}, at::kDouble).normal_(0, 1, generator);
  };
  std::vector<at::Tensor> plains = {draw(program.rows, program.columns),
                                    draw(program.rows, program.columns),
                                    draw(program.columns, program.columns)};
  Mesh mesh = mesh_of_ranks(world, shape);
  DrawnNumbers drawn(program.seed + 1);
  std::vector<at::Tensor> globals, copies;
  std::string what = "seed " + std::to_string(program.seed);
  for (const at::Tensor& plain : plains) {
    globals.push_back(
        moved_somewhere(placed(plain.to(device), mesh, Placements(shape.size())), drawn));
    globals.back() = moved_somewhere(globals.back(), drawn).detach();
    copies.push_back(plain.to(of_one, plain.scalar_type(), false, /*copy=*/true));
    what += ", " + describe(globals.back());
  }
  ProgramOutcome expected;
  try {
    expected = run_program(program, copies);
  } catch (const std::exception&) {
    return;  // the operation needs elements
  }
  ProgramOutcome found;
  try {
    found = run_program(program, globals);
    compare_tensors(found.values, expected.values, "values: " + what);
    compare_tensors(found.gradients, expected.gradients, "gradients: " + what);
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": " << std::string(error.what()).substr(0, 500);
  }
}

// Draws the mesh of `ranks` ranks and a program, and calls run(program, shape of the mesh).
template <typename Run>
void with_random_program(Random& random, int ranks, const Run& run) {
  const auto shapes = shapes_of_meshes(ranks);
  const std::vector<int> shape = shapes[below(random, shapes.size())];
  const RandomProgram program{.rows = static_cast<std::int64_t>(below(random, 9)),
                              .columns = static_cast<std::int64_t>(2 + below(random, 7)),
                              .seed = random(),
                              .steps = 2 + static_cast<int>(below(random, 8))};
  run(program, shape);
}

}  // namespace lockstep::test
