// Task: what a run learns. It owns the data and the model and says what one batch costs; it knows
// nothing of optimizers, files or steps. The trainer's loop is the same for all of them.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/train/evaluation.h>
#include <lockstep/train/options.h>

#include <torch/data/example.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

using Batch = torch::data::Example<>;

class Task {
 public:
  virtual ~Task() = default;

  // Reads and checks the data. `identity` is what an earlier run's data_identity() gave, or empty.
  // Local; throws BadInput.
  virtual void load(const std::string& identity) = 0;
  // In place of load(), where nothing is trained: the validation part of `file` is all of it, or
  // with an empty one that of the run's own data. Local; throws BadInput.
  virtual void load_validation(const std::string& identity, const std::string& file) = 0;
  // What the model's meaning depends on beside the options (the vocabulary); kept in checkpoints.
  [[nodiscard]] virtual std::string data_identity() const { return {}; }
  // Which data it is, after load(): size and checksum. Equal data give equal texts.
  [[nodiscard]] virtual std::string data_fingerprint() const = 0;
  // How many parameters the model of make_model() will have, after load(); 0: too few to matter.
  [[nodiscard]] virtual double parameters() const { return 0; }
  // How many numbers a forward pass over this rank's micro-batch keeps for backward(), at least.
  [[nodiscard]] virtual double activations() const { return 0; }
  // Makes the model, after load(), with initial weights from LibTorch's default generator.
  virtual void make_model() = 0;
  [[nodiscard]] virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  // The modules of which each is one unit when the model is sharded (ShardOptions::units).
  [[nodiscard]] virtual std::vector<std::string> units() const = 0;

  // Steps in one pass over the training data.
  [[nodiscard]] virtual std::int64_t steps_per_epoch() const = 0;
  // This rank's rows of the global batch of step number `step`: a function of the seed and the step
  // alone.
  [[nodiscard]] virtual Batch batch(std::int64_t step) = 0;
  // Mean loss of some rows.
  [[nodiscard]] virtual at::Tensor loss(const Batch& batch) = 0;

  [[nodiscard]] virtual std::int64_t validation_samples() const = 0;
  // How many of them are measured at once.
  [[nodiscard]] virtual std::int64_t evaluation_rows() const = 0;
  // Measures the validation samples with these numbers.
  [[nodiscard]] virtual Totals measure(std::span<const std::size_t> samples) = 0;
  [[nodiscard]] virtual bool has_accuracy() const { return false; }

  // Tokens of one training sample; 0 where that means nothing.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const { return 0; }

  // More of the last line: {"bigram", "2.452"}.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results() const {
    return {};
  }
  // Text of `tokens` tokens that the model makes up; empty where that means nothing.
  [[nodiscard]] virtual std::string sample(std::int64_t tokens) const {
    (void)tokens;
    return {};
  }
};

// The task named by options.task, for this rank of the group.
[[nodiscard]] std::unique_ptr<Task> make_task(const Options& options, const Group& group);

}  // namespace lockstep::train
