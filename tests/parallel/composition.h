// A GPT, with or without mixtures of experts, on a mesh with any of the axes pp, dp, fsdp, tp, cp
// and ep, and the same model on one process.
#pragma once

#include <lockstep/mesh/mesh.h>
#include <lockstep/models/moe.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/plan/schedule.h>

#include "parallel/parity_optimizer.h"
#include "parallel/tensor/support.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

struct Composition {
  std::vector<MeshAxis> axes;
  std::string schedule = "1f1b";
  bool sequence = false;
  bool checkpoints = false;  // of the activations of blocks
  bool offload = false;      // them to host memory instead
  ShardLevel level = ShardLevel::full;
  int micro_batches = 4;
  bool buckets = true;
  ContextMethod context = ContextMethod::ring;
  bool on_host = false;  // shards are offloaded to host memory
  // Called before each forward of a stage or of the model, unless null.
  std::function<void()> before_forward = {};
};

inline std::string text_of(const Composition& what) {
  std::string text;
  for (const MeshAxis& axis : what.axes)
    text += (text.empty() ? "" : " x ") + axis.name + std::to_string(axis.size);
  const bool piped = std::ranges::any_of(what.axes, [](auto& one) { return one.name == "pp"; });
  if (piped) text += ", " + what.schedule;
  if (what.sequence) text += ", sequence parallel";
  if (what.level == ShardLevel::optimizer) text += ", optimizer shards";
  if (what.level == ShardLevel::gradients) text += ", gradient shards";
  if (what.context == ContextMethod::ulysses) text += ", ulysses";
  if (what.checkpoints) text += ", activations checkpointed";
  if (what.offload) text += ", activations offloaded";
  if (what.on_host) text += ", offloaded";
  return text;
}

inline int ranks_of(const Composition& what) { return ranks_of(what.axes); }

inline int size_of(const Composition& what, const std::string& axis) {
  for (const MeshAxis& one : what.axes)
    if (one.name == axis) return one.size;
  return 1;
}

// The number of ranks that have different rows.
inline int dp_ranks_of(const Composition& what) {
  return size_of(what, "dp") * size_of(what, "ep") * size_of(what, "fsdp");
}

// A model on the ranks of a group: parallelize() with the options of a Composition.
template <typename Model>
class Composed {
 public:
  Composed(Model model, Group world, Composition how)
      : model_(std::move(model)),
        how_(std::move(how)),
        handle_(parallelize(model_.ptr(), Mesh(std::move(world), how_.axes), plan(), options())) {}

  [[nodiscard]] ParallelModel& all() { return handle_; }
  [[nodiscard]] Model& model() { return model_; }
  [[nodiscard]] const Mesh& mesh() const { return handle_.mesh(); }

  // Runs forward and backward of the whole batch; each data rank takes its rows. Returns the loss
  // over all ranks.
  double step(const at::Tensor& ids, const at::Tensor& targets) {
    const Group data = handle_.data();
    const at::Tensor loss = handle_.step({own_rows(data, ids)}, {own_rows(data, targets)});
    EXPECT_FALSE(is_global(loss));
    return average_over(data, loss);
  }

  [[nodiscard]] bool has(const std::string& name) const {
    return std::ranges::any_of(how_.axes, [&](auto& one) { return one.name == name; });
  }

 private:
  [[nodiscard]] ParallelPlan plan() const {
    ParallelPlan plan = lockstep::parallel_plan(model_);
    if (!how_.before_forward) return plan;
    const int stages = size_of(how_, "pp") * plan::stages_per_rank(how_.schedule);
    std::vector<std::string> first{plan.pieces.front().name};
    if (has("pp"))
      for (std::string& point : even_points(plan.pieces, stages)) first.push_back(std::move(point));
    for (ModelPiece& piece : plan.pieces)
      if (std::ranges::find(first, piece.name) != first.end())
        piece.forward = [deed = how_.before_forward,
                         inner = std::move(piece.forward)](const Tensors& inputs) {
          deed();
          return inner(inputs);
        };
    return plan;
  }

  [[nodiscard]] ParallelOptions options() const {
    ParallelOptions options{.sequence_parallel = how_.sequence,
                            .context = how_.context,
                            .shard = {.level = how_.level, .offload_to_host = how_.on_host},
                            .data = {.bucket_bytes = how_.buckets ? 20000 : 1 << 25},
                            .pipeline = {how_.schedule},
                            .micro_batches = has("pp") ? how_.micro_batches : 1};
    if (how_.checkpoints || how_.offload)
      options.activation_checkpointing = lockstep::parallel_plan(model_).blocks;
    options.activations.offload = how_.offload;
    return options;
  }

  Model model_;
  const Composition how_;
  ParallelModel handle_;
};

using ComposedGpt = Composed<models::Gpt>;

inline models::GptOptions composed_gpt() {
  models::GptOptions options = small_gpt(4);
  options.heads = 4;
  options.hidden_size = 40;
  return options;
}

inline ComposedGpt composed(Group world, const Composition& how, at::ScalarType dtype) {
  return {made_alike([] { return models::Gpt(composed_gpt()); }, dtype), std::move(world), how};
}

inline models::MoeOptions composed_moe(double capacity, int every = 1) {
  models::MoeOptions options{.gpt = small_gpt(2, /*bias=*/false), .every = every};
  options.gpt.heads = 4;
  options.gpt.hidden_size = 24;
  options.mixture.experts = 4;
  options.mixture.capacity_factor = capacity;
  return options;
}

inline models::Moe moe_of(double capacity, at::ScalarType dtype, int every = 1) {
  return made_alike([&] { return models::Moe(composed_moe(capacity, every)); }, dtype);
}

inline Composed<models::Moe> composed(Group world, models::Moe model, const Composition& how) {
  return {std::move(model), std::move(world), how};
}

// The rows of micro-batch `number` of a step. Each data rank splits its own rows into
// micro-batches.
inline at::Tensor rows_of_micro_batch(const at::Tensor& rows, int dp_ranks, int micro_batches,
                                      int number) {
  const std::int64_t each = rows.size(0) / dp_ranks;
  std::vector<at::Tensor> parts;
  for (int dp_rank = 0; dp_rank < dp_ranks; ++dp_rank) {
    const std::int64_t begin = each * number / micro_batches;
    const std::int64_t end = each * (number + 1) / micro_batches;
    parts.push_back(rows.narrow(0, dp_rank * each + begin, end - begin));
  }
  return at::cat(parts);
}

constexpr std::int64_t rows_of_step = 8;

// Returns the expected losses: one process makes the same steps with all rows, split into the same
// micro-batches if that affects results. Calls `observe(step)` before each update, unless null.
template <typename Model>
std::vector<double> losses_of_one(Model model, at::ScalarType dtype, int steps, int dp_ranks = 1,
                                  int micro_batches = 1,
                                  const std::function<void(int step)>& observe = {}) {
  const auto optimizer = parity_optimizer(dtype, model->parameters());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const TokenBatch batch(step % 7, rows_of_step);
    optimizer->zero_grad();
    losses.push_back(0);
    for (int i = 0; i < micro_batches; ++i) {
      const at::Tensor ids = rows_of_micro_batch(batch.ids, dp_ranks, micro_batches, i);
      const double share = static_cast<double>(ids.size(0)) / rows_of_step;
      const at::Tensor loss =
          model->loss(ids, rows_of_micro_batch(batch.targets, dp_ranks, micro_batches, i)) * share;
      loss.backward();
      losses.back() += loss.template item<double>();
    }
    if (observe) observe(step);
    optimizer->step();
  }
  return losses;
}

// Returns a text as a name for GoogleTest.
inline std::string as_test_name(std::string text) {
  for (char& letter : text)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return text;
}

inline std::string test_name_of(const Composition& what) { return as_test_name(text_of(what)); }

}  // namespace lockstep::test
