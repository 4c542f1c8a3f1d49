// Random programs with sharded parameters: node-shared storage computes bitwise the same as private
// memory, whichever units a pass uses and whichever rank is late.
#include "parallel/sharded/pair.h"
#include "support/fuzz.h"

#include <lockstep/optim/adamw.h>

#include <torch/optim/sgd.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

// Parameters of 4 bytes to 64 KiB; each is a unit.
struct Pieces : torch::nn::Module {
  Pieces(Random& random, int count) {
    for (int i = 0; i < count; ++i) {
      auto elements = static_cast<std::int64_t>(std::size_t{1} << below(random, 15));
      elements += static_cast<std::int64_t>(below(random, static_cast<std::size_t>(elements)));
      bool trains = i == 0 || !one_in(random, 6);
      parameters_.push_back(register_parameter(name_of(i), values({elements}, i), trains));
    }
  }
  static std::string name_of(int i) { return "piece" + std::to_string(i); }
  [[nodiscard]] const at::Tensor& piece(int i) const {
    return parameters_[static_cast<std::size_t>(i)];
  }

 private:
  std::vector<at::Tensor> parameters_;
};

// The observations of a rank: results of evaluations, and its slices after each write.
using Seen = std::vector<at::Tensor>;

class Program {
 public:
  Program(std::uint64_t seed, Group group, ShardLevel level, ShardStorage storage)
      : random_(seed),
        delays_(seed * 31 + static_cast<std::uint64_t>(group.rank())),
        group_(std::move(group)),
        count_(2 + static_cast<int>(below(random_, 24))),
        model_(std::make_shared<Pieces>(random_, count_)),
        sharded_(fully_shard(model_, group_, options(level, storage))) {
    std::vector<at::Tensor> even;
    std::vector<at::Tensor> odd;
    std::size_t i = 0;
    for (const at::Tensor& slice : sharded_.parameters())
      if (slice.requires_grad()) (i++ % 2 == 0 ? even : odd).push_back(slice);
    ours_ = std::make_unique<optim::AdamW>(even, torch::optim::AdamWOptions(0.01));
    if (!odd.empty())
      theirs_ =
          std::make_unique<torch::optim::SGD>(odd, torch::optim::SGDOptions(0.1).momentum(0.9));
  }

  Seen run() {
    for (int step = 0; step < 4; ++step) {
      train(step);
      while (one_in(random_, 2)) act();
      update();
      while (one_in(random_, 3)) act();
    }
    for (const auto& [name, values] : sharded_.state_dict()) seen_.push_back(values);
    return std::move(seen_);
  }

 private:
  static ShardOptions options(ShardLevel level, ShardStorage storage) {
    return {
        .units = {"piece*"}, .level = level, .storage = storage, .find_unused_parameters = true};
  }

  void delay() {
    if (one_in(delays_, 3))
      std::this_thread::sleep_for(std::chrono::microseconds(below(delays_, 500)));
  }

  // Returns a random subset of the pieces in random order.
  std::vector<int> some() {
    std::vector<int> chosen(static_cast<std::size_t>(count_));
    std::iota(chosen.begin(), chosen.end(), 0);
    std::shuffle(chosen.begin(), chosen.end(), random_);
    chosen.resize(1 + below(random_, chosen.size()));
    return chosen;
  }

  void train(int step) {
    sharded_.zero_grad();
    std::vector<int> used = some();
    used.push_back(0);
    at::Tensor loss = at::zeros({});
    for (int i : used) {
      const at::Tensor& piece = model_->piece(i);
      at::Tensor x = values({piece.size(0)}, 100 * step + 10 * i + group_.rank());
      loss = loss + (piece * x).square().mean();
      delay();
    }
    loss.backward();
    delay();
  }

  void evaluate() {
    torch::NoGradGuard no_grad;
    for (int i : some()) {
      seen_.push_back((model_->piece(i) * 3).sum());
      delay();
    }
  }

  void write_in_place() {
    torch::NoGradGuard no_grad;
    for (int i : some()) {
      model_->piece(i).mul_(0.75).clamp_(-0.25, 0.25);
      delay();
    }
  }

  void write_slices() {
    torch::NoGradGuard no_grad;
    for (const at::Tensor& slice : sharded_.parameters()) {
      slice.add_(0.125);
      if (one_in(random_, 4)) evaluate();
    }
    note_slices();
  }

  void look() {
    torch::NoGradGuard no_grad;
    auto scope = sharded_.unsharded();
    evaluate();
  }

  void act() {
    switch (below(random_, 5)) {
      case 0:
        return write_in_place();
      case 1:
        return write_slices();
      case 2:
        return look();
      default:
        return evaluate();
    }
  }

  void update() {
    ours_->step();
    if (one_in(random_, 2)) evaluate();
    if (theirs_) theirs_->step();
    note_slices();
  }

  void note_slices() {
    for (const at::Tensor& slice : sharded_.parameters()) seen_.push_back(slice.detach().clone());
    delay();
  }

  Random random_;  // the same on every rank
  Random delays_;
  Group group_;
  int count_;
  std::shared_ptr<Pieces> model_;
  ShardedModule sharded_;
  std::unique_ptr<torch::optim::Optimizer> ours_, theirs_;
  Seen seen_;
};

class RandomPrograms : public testing::TestWithParam<ShardLevel> {
 protected:
  static void compare(std::uint64_t seed, const Group& group) {
    Seen expected = Program(seed, group, GetParam(), ShardStorage::private_memory).run();
    Seen found = Program(seed, group, GetParam(), ShardStorage::node_shared).run();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_TRUE(same_bits(found[i], expected[i]))
          << "seed " << seed << ", " << group.size() << " ranks, value " << i;
  }
};

TEST_P(RandomPrograms, SeeTheSameInNodeSharedAndInPrivateMemory) {
  for (FuzzRounds rounds("random_programs", 1000); rounds.next();) {
    constexpr std::uint64_t programs = 5;  // per group of ranks, whose creation costs more
    auto seed = rounds.random()();
    int size = 2 + static_cast<int>(below(rounds.random(), 3));
    run_group(BackendKind::shm, size, [&](Group group) {
      at::set_num_threads(1);
      for (std::uint64_t i = 0; i < programs && !testing::Test::HasFailure(); ++i)
        compare(seed + i, group);
      group.barrier().wait();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, RandomPrograms, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
