// Task: the data, the model and the loss of a run. A task does not depend on steps, optimizers,
// strategies or files, and the trainer (trainer.h) does not depend on models: the same loop trains
// all tasks.
//
// The trainer calls these functions on every rank:
//
//   once     name(), defaults(), declare()     before the command line is read
//            check()                           after it
//            restore()                         on a resume
//            load()                            the data
//            parameters(), activations()       whether the model fits
//            make_model(), parallel_plan()     then parallelize()
//   a step   batch(), loss()                   loss() once for each micro-batch
//   now and  validation(), measure()           evaluation, with the module in evaluation mode
//   then     sample()
//
// restore(), load() and make_model() are local: they must not communicate. If one of them throws on
// one rank, the run ends on all ranks with that rank's message. batch() and validation() may
// communicate. loss(), measure() and sample() use the model, which may be sharded: every rank calls
// them equally often, and a parameter that one rank uses must be used by all ranks. All calls come
// from one thread.
//
// With --device, the trainer moves the model and each batch to the device, so loss() and measure()
// find both there; make_model(), batch() and validation() may work in host memory. The trainer then
// calls batch() for the next step while the device computes this one.
//
// With --strategy threads, threads of several devices run the replicas of make_replica()
// concurrently, while device 0 runs loss(). They must not write shared data.
//
// A task object serves a single run.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/parallel_plan.h>
#include <lockstep/train/generation.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep::train {

// Rows are the first dim of every tensor. The trainer splits a batch into micro-batches along rows.
// Under --precision with --shard, loss() and measure() get the floating-point tensors of `data` and
// `more` in the dtype of the computation; `target` keeps its dtype. Without --shard they run under
// LibTorch's autocast.
struct Batch {
  Batch() = default;
  Batch(at::Tensor data, at::Tensor target, std::vector<at::Tensor> more = {})
      : data(std::move(data)), target(std::move(target)), more(std::move(more)) {}
  Batch(torch::data::Example<> example)
      : Batch(std::move(example.data), std::move(example.target)) {}

  at::Tensor data, target;
  std::vector<at::Tensor> more;  // for models with more than one input
};

// For loaders (data/batches.h).
inline std::vector<at::Tensor*> tensors_of(Batch& batch) {
  std::vector<at::Tensor*> tensors{&batch.data, &batch.target};
  for (at::Tensor& tensor : batch.more) tensors.push_back(&tensor);
  return tensors;
}

// A model like that of Task::make_model(), and Task::loss() evaluated with it.
struct Replica {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Batch& batch)> loss;
};

// Sums over samples, so that parts of any size combine to the correct mean.
struct Totals {
  double loss = 0;     // sum of the losses of all targets
  double targets = 0;  // number of targets in the mean: rows, or the tokens of all rows
  double correct = 0;  // targets that were predicted correctly

  Totals& operator+=(const Totals& other) {
    loss += other.loss;
    targets += other.targets;
    correct += other.correct;
    return *this;
  }
};

class Task {
 public:
  virtual ~Task() = default;

  // Returns one word for messages, config.toml and checkpoints. A checkpoint can be resumed only by
  // the task of the same name.
  [[nodiscard]] virtual std::string name() const = 0;
  // Returns trainer options with which this task is known to train well.
  [[nodiscard]] virtual Options defaults() const { return {}; }
  // Adds the task's own settings, bound to its members. Called more than once.
  virtual void declare(Settings& /*settings*/) {}
  // Checks conditions that involve several settings. Throws BadInput with a message of one line.
  virtual void check() const {}

  // Describes the model beyond the settings of Scope::model and Scope::shape: texts that
  // checkpoints and model files record (such as the characters of a vocabulary), under names that
  // no setting of the model has.
  [[nodiscard]] virtual checkpoint::Metadata description() const { return {}; }
  // Restores the description() of an earlier run, which was read from a file. Called before load()
  // and make_model(). Throws BadInput for missing or invalid entries.
  virtual void restore(const checkpoint::Metadata& /*description*/) {}

  // Reads and checks the data. Throws BadInput. `group` provides sizes, ranks and loaders.
  virtual void load(const Options& options, const Group& group) = 0;
  // Called in place of load() to evaluate a saved model without training. The validation data is
  // the whole file `data`, or, if `data` is empty, the validation data of load(). Throws BadInput.
  virtual void load_validation(const Options& options, const Group& group, const std::string& data);
  // Identifies the data; called after load(). A run can be resumed only with data of the same
  // fingerprint, which must be equal on all ranks. The default is the size and checksum of some
  // validation samples: override it if the training data can change without these.
  [[nodiscard]] virtual std::string data_fingerprint();

  // Returns the number of parameters of make_model()'s model, at most twice too large. Called after
  // load(), or, for a saved model, after restore() without load(). 0: too few to matter.
  [[nodiscard]] virtual double parameters() const { return 0; }
  // Returns a lower bound of the number of values that a forward pass over this rank's micro-batch
  // keeps for backward().
  [[nodiscard]] virtual double activations() const { return 0; }
  // Returns the floating-point operations of forward and backward for one training sample; called
  // after load(). 0: unknown, and metrics have no mfu.
  [[nodiscard]] virtual double flops_per_sample() const { return 0; }
  // Makes the model in float32, with initial weights from LibTorch's default generator. Called
  // after load() or load_validation(). The task keeps the model for loss() and measure(); the
  // trainer updates its weights.
  [[nodiscard]] virtual std::shared_ptr<torch::nn::Module> make_model() = 0;
  // Makes another model of any values, for the devices of --strategy threads other than the first.
  // Called after make_model(). The default returns none, and that strategy is refused.
  [[nodiscard]] virtual Replica make_replica() const { return {}; }
  // Returns the information about the model that parallelize() needs
  // (lockstep/parallel/parallel_plan.h): the modules that are units of --shard, and the fields that
  // --mesh tp, cp and pp need; an axis whose field is missing is refused. Called after check().
  // Pieces and their loss are needed after make_model(); the loss must equal loss() for the output
  // of the last piece. The default makes the model a single unit, which suits small models only.
  [[nodiscard]] virtual ParallelPlan parallel_plan() const { return {}; }
  // Returns the weight of a batch's mean loss in measure(); by default its number of rows.
  [[nodiscard]] virtual double weight_of(const Batch& batch) const;

  // Returns the number of steps in one pass over the training data.
  [[nodiscard]] virtual std::int64_t steps_per_epoch() const = 0;
  // Returns this rank's rows of the global batch of step `step`; all ranks have equally many. The
  // result must depend on the seed and the step only, so that a resumed run sees the same batches.
  // Host memory may be used again for the next batch; tensors on the device must keep their values
  // until the next call, also during validation() and sample(). With --uneven, ranks may have
  // different numbers of rows; a rank without rows gets a Batch without tensors. EpochBatches
  // (epoch_batches.h) implements this for any dataset.
  [[nodiscard]] virtual Batch batch(std::int64_t step) = 0;
  // Returns the mean loss over these rows as a tensor of one element.
  [[nodiscard]] virtual at::Tensor loss(const Batch& batch) = 0;

  [[nodiscard]] virtual std::int64_t validation_samples() const = 0;
  // Returns the validation samples with these indices, which start at 0.
  [[nodiscard]] virtual Batch validation(std::span<const std::size_t> samples) = 0;
  // Returns the number of samples in one batch of an evaluation (--eval-batches).
  [[nodiscard]] virtual std::int64_t evaluation_rows() const { return 256; }
  // Returns the number of samples to measure at once; called after load() or load_validation().
  // Return fewer if a batch would need much memory.
  [[nodiscard]] virtual std::int64_t rows_at_once() const { return evaluation_rows(); }
  // Returns sums over these samples. By default, loss() counts once per row.
  [[nodiscard]] virtual Totals measure(const Batch& batch);
  // Returns true if measure() counts correct predictions.
  [[nodiscard]] virtual bool has_accuracy() const { return false; }

  // Returns the tokens of one training sample, or 0 if the task has no tokens.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const { return 0; }
  // Returns additional names and values for the run's last line: {"bigram", "2.452"}.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results() const {
    return {};
  }
  // Returns true if sample() generates something; enables --sample and --sample-every.
  [[nodiscard]] virtual bool makes_samples() const { return false; }
  // Generates a sample from the current model, in UTF-8; `length` is in the task's units (tokens
  // for gpt).
  [[nodiscard]] virtual std::string sample(std::int64_t /*length*/) { return {}; }
  // Variant for --mesh pp, where ranks own stages of the model. It uses `generate`, which returns
  // the tokens that follow given tokens and which all ranks call together.
  [[nodiscard]] virtual std::string sample_by(std::int64_t /*length*/,
                                              const GenerateTokens& /*generate*/) {
    return {};
  }

  // For the trainer: sets the function that check_interrupt() calls; empty: none.
  void set_interrupt_check(std::function<void()> check) { interrupt_check_ = std::move(check); }

 protected:
  // Call it between the parts of a long sample(), equally often on all ranks. Throws if a signal
  // asks the run to end; let the exception pass.
  void check_interrupt() const {
    if (interrupt_check_) interrupt_check_();
  }

 private:
  std::function<void()> interrupt_check_;
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;
};

// Measures the validation samples with these indices.
using Measure = std::function<Totals(std::span<const std::size_t>)>;

// Evaluates a model on a whole validation set that is split over the ranks. Each sample counts
// once, even if the number of ranks does not divide the number of samples.
//
// Calls `measure` on this rank's share of the samples 0 ... samples - 1, at most `rows` at a time,
// and returns the means over the samples of all ranks, equal on every rank. Collective: a rank
// without samples must also call. Gradients are disabled in `measure`.
//
// With `in_step`, every rank calls `measure` equally often, as a sharded model requires: a rank
// with fewer samples measures the first ones again, and the result is discarded.
[[nodiscard]] Evaluation evaluate(Group& group, std::int64_t samples, std::int64_t rows,
                                  const Measure& measure, bool in_step = false);

// A text for data_fingerprint(): "1115394 elements, crc32 1a2b3c4d" of the tensors' concatenated
// bytes.
[[nodiscard]] std::string fingerprint_of_tensors(std::initializer_list<at::Tensor> tensors);

// The seed of random stream `stream` in a run with this seed, for batch(). Streams from 0 belong to
// steps; neighbouring streams are unrelated.
[[nodiscard]] std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream);

}  // namespace lockstep::train

#pragma GCC visibility pop
