// Your own task in the trainer: the program below has the command line of `lockstep train`,
// including checkpoints, resuming, evaluation, the best model, early stopping, mixed precision and
// sharding.
//
//   16_your_own_task --out run --ranks 2 --shard full --precision bf16
//   16_your_own_task --out run --resume --steps 2000
//   16_your_own_task --help
#include <lockstep/lockstep.h>
#include <lockstep/train/epoch_batches.h>
#include <lockstep/train/program.h>

#include <torch/torch.h>

#include <cmath>
#include <optional>

namespace ls = lockstep;
using namespace lockstep::train;

// y = sin(3 x). A dataset is any type with size() and get() or get_batch().
struct Sine {
  std::size_t count = 0;
  std::size_t size() const { return count; }
  torch::data::Example<> get(std::size_t index) const {
    const double x = 2.0 * double(index) / double(count) - 1.0;
    return {torch::tensor({x}, torch::kFloat), torch::tensor({std::sin(3 * x)}, torch::kFloat)};
  }
};

class SineTask : public Task {
 public:
  std::string name() const override { return "sine"; }
  Options defaults() const override {
    Options options;
    options.batch = 60;
    options.lr = 0.003;
    return options;
  }
  void declare(Settings& settings) override {
    settings.add({.name = "width", .help = "hidden features", .least = 1, .scope = Scope::shape},
                 width_);
  }
  void load(const Options& options, const ls::Group& group) override {
    batches_.emplace(Sine{1200}, options, group);
  }
  std::shared_ptr<torch::nn::Module> make_model() override {
    using namespace torch::nn;
    model_ =
        Sequential(Linear(1, width_), Tanh(), Linear(width_, width_), Tanh(), Linear(width_, 1));
    return model_.ptr();
  }
  ls::ParallelPlan parallel_plan() const override { return {.blocks = {"*"}}; }
  std::int64_t steps_per_epoch() const override { return batches_->steps_per_epoch(); }
  Batch batch(std::int64_t step) override { return batches_->batch(step); }
  torch::Tensor loss(const Batch& batch) override {
    return torch::mse_loss(model_->forward(batch.data).to(torch::kFloat), batch.target);
  }
  std::int64_t validation_samples() const override { return std::int64_t(validation_.size()); }
  Batch validation(std::span<const std::size_t> samples) override {
    return ls::data::read_batch(validation_, {samples.data(), samples.size()});
  }

 private:
  std::int64_t width_ = 64;
  Sine validation_{77};
  std::optional<EpochBatches<Sine>> batches_;
  torch::nn::Sequential model_{nullptr};
};

int main(int count, char** words) {
  SineTask task;
  return run_program(task, count, words);
}
