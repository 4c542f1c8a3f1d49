// A checkpoint that ranks saved on one mesh and strategy is loaded on any other, with bitwise equal
// model and optimizer state. Models, the layouts of both sides, and the numbers of files are
// random.
#include <lockstep/checkpoint/checkpoint.h>

#include <lockstep/parallel/parallelize.h>

#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/small_training.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::below;
using test::TemporaryFolder;

constexpr int layout_micro_batches = 2;

struct ModelSize {
  int blocks = 2;
  std::int64_t width = 3;
  std::int64_t hidden = 8;  // tensor parallelism divides it
  double seed = 1;
};

struct LayoutBlockImpl : torch::nn::Module {
  explicit LayoutBlockImpl(const ModelSize& size)
      : norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})))),
        up(register_module("up", torch::nn::Linear(size.width, size.hidden))),
        down(register_module("down", torch::nn::Linear(size.hidden, size.width))),
        shift(register_buffer("shift", torch::full({size.width}, 0.1))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(up(norm(x)).tanh()) + shift; }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  at::Tensor shift;
};
TORCH_MODULE(LayoutBlock);

torch::nn::Sequential model_of(const ModelSize& size) {
  torch::nn::Sequential model;
  for (int i = 0; i < size.blocks; ++i) model->push_back(LayoutBlock(size));
  at::NoGradGuard no_grad;
  double seed = size.seed;
  for (at::Tensor& parameter : model->parameters())
    parameter.copy_(at::arange(parameter.numel()).mul(0.1 * seed++).sin().view_as(parameter));
  return model;
}

enum class Kind { replicas, shards };

// A pipeline whose stages each have `outer` shards or replicas of `tensors` ranks.
struct Layout {
  int pipeline = 1, outer = 1, tensors = 1;
  Kind how = Kind::replicas;  // the outer ranks
  ShardLevel level = ShardLevel::full;
  std::vector<std::string> cuts;  // of a pipeline alone

  [[nodiscard]] int ranks() const { return pipeline * outer * tensors; }
  [[nodiscard]] std::string text() const {
    std::string words;
    const auto add = [&](const char* name, int size) {
      if (size > 1)
        words += (words.empty() ? "" : " x ") + std::string(name) + std::to_string(size);
    };
    add("pp", pipeline);
    const std::array names{"optimizer", "gradients", "full"};
    add(how == Kind::replicas ? "dp" : names[static_cast<std::size_t>(level) % names.size()],
        outer);
    add("tp", tensors);
    return words.empty() ? "one" : words;
  }
};

Layout some_layout(test::Random& random, const ModelSize& size) {
  Layout layout;
  const std::array levels{ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full};
  layout.level = levels[below(random, levels.size())];
  layout.how = below(random, 2) == 0 ? Kind::replicas : Kind::shards;
  const auto from = [&](int least, int most) {
    return least + static_cast<int>(below(random, static_cast<std::size_t>(most - least + 1)));
  };
  switch (below(random, 4)) {
    case 0:
      layout.outer = from(1, 8);
      break;
    case 1:
      layout.tensors = below(random, 2) == 0 ? 2 : 4;
      layout.outer = from(1, 8 / layout.tensors);
      break;
    case 2:
      layout.tensors = 2;
      layout.pipeline = 2;
      layout.outer = from(1, 2);
      break;
    default:
      layout.pipeline = from(1, std::min(4, size.blocks - 2));
      layout.outer = from(1, 8 / layout.pipeline);
  }
  std::set<int> places;
  while (std::ssize(places) < layout.pipeline - 1) places.insert(from(1, size.blocks - 1));
  for (const int place : places) layout.cuts.push_back(std::to_string(place));
  return layout;
}

at::Tensor squared(const lockstep::Tensors& outputs, const lockstep::Tensors& targets) {
  return (outputs.front() - targets.front()).square().mean();
}

struct LaidOut {
  LaidOut(const ModelSize& size, const Layout& layout, const std::string& optimizer_name,
          const Group& world)
      : width(size.width), model(model_of(size)) {
    if (layout.pipeline > 1 && layout.outer * layout.tensors == 1) {
      const auto schedule = plan::make_schedule(
          "1f1b", {.stages = layout.pipeline, .micro_batches = layout_micro_batches});
      pipeline = Pipeline(split(model, layout.cuts), schedule, world, squared);
    } else {
      const Mesh mesh(world, {{"pp", layout.pipeline},
                              {layout.how == Kind::replicas ? "dp" : "fsdp", layout.outer},
                              {"tp", layout.tensors}});
      handle = parallelize(model, mesh,
                           {.tensor = {{"*.up", Colwise()}, {"*.down", Rowwise()}},
                            .shard = {.level = layout.level},
                            .micro_batches = layout.pipeline > 1 ? layout_micro_batches : 1});
    }
    optimizer = test::all_optimizers().at(optimizer_name)(own().parameters());
  }

  Handle& own() { return pipeline.is_attached() ? static_cast<Handle&>(pipeline) : handle; }

  void step() {
    own().zero_grad();
    const at::Tensor input = at::arange(4 * width).mul(0.3).cos().view({4, width});
    const at::Tensor target = input.sin();
    if (pipeline.is_attached())
      (void)pipeline.step({input}, {target});
    else
      (void)handle.step({input}, {target}, squared);
    optimizer->step();
  }

  std::int64_t width;
  torch::nn::Sequential model;
  ParallelModel handle;
  Pipeline pipeline;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

// Expects each part of this rank to equal the values in the file at the part's position.
void expect_parts_of(const NamedTensors& whole, const std::vector<FilePart>& parts, int rank,
                     bool is_saver) {
  at::NoGradGuard no_grad;
  for (const FilePart& part : parts) {
    if (is_saver && part.part.kind == PartKind::buffer && rank > 0)
      continue;  // the buffers are rank 0's
    ASSERT_TRUE(whole.contains(part.part.name)) << part.part.name;
    const at::Tensor values = part.values();
    for (const layout::Box& box : layout::boxes_of(part.part.slice))
      EXPECT_TRUE(at::equal(view_of(values, part.part.slice, box),
                            modules::box_in_whole(whole.at(part.part.name), box)))
          << part.part.name << " on rank " << rank;
  }
}

void expect_saved(LaidOut& training, const fs::path& folder, const Group& world, bool is_saver) {
  expect_parts_of(read_safetensors(folder / "model.safetensors").tensors,
                  model_parts(training.own().state_parts(), false), world.rank(), is_saver);
  expect_parts_of(read_safetensors(folder / "optimizer.safetensors").tensors,
                  optimizer_parts(*training.optimizer, training.own()), world.rank(), is_saver);
}

std::uint64_t bytes_in(const std::vector<FilePart>& parts) {
  std::uint64_t bytes = 0;
  for (const FilePart& part : parts)
    bytes += static_cast<std::uint64_t>(part.part.slice.numel()) * c10::elementSize(part.dtype());
  return bytes;
}

// Expects that this rank has read only the bytes of its own parts, each of them once, also for
// checksums.
void expect_bytes(LaidOut& training, const LoadCounts& counts, std::uint64_t random_state) {
  EXPECT_EQ(counts.read, bytes_in(model_parts(training.own().mutable_state_parts(), false)) +
                             bytes_in(optimizer_parts(*training.optimizer, training.own())) +
                             random_state);
}

class RandomLayouts {
 public:
  void round(test::Random& random) {
    const ModelSize size{.blocks = 4 + static_cast<int>(below(random, 3)),
                         .width = 1 + static_cast<std::int64_t>(below(random, 9)),
                         .hidden = 4 * (1 + static_cast<std::int64_t>(below(random, 4)))};
    const std::array optimizers{"adamw", "our_adamw", "momentum", "rmsprop", "sgd"};
    const std::string optimizer = optimizers[below(random, optimizers.size())];
    const Layout from = some_layout(random, size), to = some_layout(random, size);
    const Sharding sharding{.files = static_cast<int>(below(random, 6))};
    const std::string words = from.text() + " to " + to.text();
    SCOPED_TRACE(words + ", " + optimizer + ", " + std::to_string(size.blocks) + " blocks, width " +
                 std::to_string(size.width) + ", hidden " + std::to_string(size.hidden) + ", " +
                 std::to_string(sharding.files) + " files");
    try {
      save_and_load(size, from, to, optimizer, sharding);
    } catch (const std::exception& problem) {
      ADD_FAILURE() << problem.what();
    }
    layouts.insert(from.text());
    layouts.insert(to.text());
    pairs.insert(words);
  }

  std::set<std::string> layouts, pairs;

 private:
  static void save_and_load(const ModelSize& size, const Layout& from, const Layout& to,
                            const std::string& optimizer, const Sharding& sharding) {
    const TemporaryFolder out;
    run_as_threads(from.ranks(), [&](Group world) {
      LaidOut training(size, from, optimizer, world);
      for (int i = 0; i < 2; ++i) training.step();
      const fs::path folder = save(out.path(), training.own(), *training.optimizer, {.step = 2},
                                   {.sharding = sharding});
      expect_saved(training, folder, world, /*is_saver=*/true);
      world.barrier().wait();
    });
    ModelSize other = size;
    other.seed = 7;
    run_as_threads(to.ranks(), [&](Group world) {
      LaidOut training(other, to, optimizer, world);
      if (sharding.files % 2 == 0) training.step();
      LoadCounts counts;
      EXPECT_EQ(
          load_latest(out.path(), training.own(), *training.optimizer, {.counts = &counts})->step,
          2);
      expect_saved(training, out / "step-00000002", world, /*is_saver=*/false);
      const std::uint64_t state = read_of_random(out / "step-00000002", from, to, world.rank());
      expect_bytes(training, counts, state);
      world.barrier().wait();
    });
  }

  // Rank 0 reads all states of generators. If the number of ranks is unchanged, each rank also
  // reads its own state.
  static std::uint64_t read_of_random(const fs::path& folder, const Layout& from, const Layout& to,
                                      int rank) {
    const NamedTensors states = read_safetensors(folder / "random.safetensors").tensors;
    const std::uint64_t one = states.at("rank0").nbytes();
    return (rank == 0 ? one * states.size() : 0) + (from.ranks() == to.ranks() ? one : 0);
  }
};

TEST(RandomLayoutsFuzz, AreSavedAndLoadedToTheBit) {
  RandomLayouts layouts;
  for (test::FuzzRounds rounds("random layouts", 50); rounds.next();)
    layouts.round(rounds.random());
  std::printf("%zu layouts in %zu pairs\n", layouts.layouts.size(), layouts.pairs.size());
}

}  // namespace
}  // namespace lockstep::checkpoint
