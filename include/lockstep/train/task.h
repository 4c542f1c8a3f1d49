// Task: what a run learns. A task owns the data and the model, and says what a batch costs. It
// knows nothing of steps, optimizers, strategies or files, and the trainer (trainer.h) nothing of
// models: the same loop trains all tasks.
//
// The trainer calls, on every rank:
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
// restore(), load() and make_model() are local: they must not communicate, and what they throw on
// one rank ends the run on all, in that rank's words. batch() and validation() may. loss(),
// measure() and sample() use the model, which ranks may have divided: every rank calls them equally
// often, and a parameter that one rank uses all ranks use. One thread calls.
//
// With --strategy dp the threads of several devices call what make_replica() gives, at the same
// time, and device 0 loss(): what they share they must not write.
//
// A task object is for one run.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>
#include <lockstep/parallel/parallel_plan.h>
#include <lockstep/train/evaluation.h>
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

// Rows: the first dim of every tensor. The trainer cuts a batch into micro-batches along it.
// Under --precision floating-point numbers of `data` and `more` come to loss() and measure() in the
// dtype of the computation; `target` stays as it is.
struct Batch {
  Batch() = default;
  Batch(at::Tensor data, at::Tensor target, std::vector<at::Tensor> more = {})
      : data(std::move(data)), target(std::move(target)), more(std::move(more)) {}
  Batch(torch::data::Example<> example)
      : Batch(std::move(example.data), std::move(example.target)) {}

  at::Tensor data, target;
  std::vector<at::Tensor> more;  // of models that take more than one input
};

// A model like that of Task::make_model(), and Task::loss() through it.
struct Replica {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Batch& batch)> loss;
};

class Task {
 public:
  virtual ~Task() = default;

  // One word: in messages, config.toml and checkpoints, which only a task of this name takes up.
  [[nodiscard]] virtual std::string name() const = 0;
  // The trainer's options with which this task is known to train well.
  [[nodiscard]] virtual Options defaults() const { return {}; }
  // Adds the task's own settings, bound to its members. Called more than once.
  virtual void declare(Settings& /*settings*/) {}
  // What no single setting can be blamed for. BadInput in one line.
  virtual void check() const {}

  // Which model it is, beside the settings of Scope::model and Scope::shape: texts that are kept in
  // checkpoints and model files (the characters of a vocabulary), by names that no setting of the
  // model has.
  [[nodiscard]] virtual checkpoint::Metadata description() const { return {}; }
  // Takes up what description() gave an earlier run, from a file: BadInput for what is missing or
  // makes no sense. Before load() and make_model().
  virtual void restore(const checkpoint::Metadata& /*description*/) {}

  // Reads and checks the data. BadInput. The group is for sizes, ranks and loaders.
  virtual void load(const Options& options, const Group& group) = 0;
  // In place of load(), where a saved model is measured and nothing is trained: the validation data
  // is all of the file `data`, or with an empty one that of load(). BadInput.
  virtual void load_validation(const Options& options, const Group& group, const std::string& data);
  // After load(): which data it is. A run goes on only with data of the same text, which must be
  // equal on all ranks. By default size and checksum of some validation samples: a task whose
  // training data can change alone says more.
  [[nodiscard]] virtual std::string data_fingerprint();

  // How many parameters the model of make_model() will have, after load(); 0: too few to matter.
  [[nodiscard]] virtual double parameters() const { return 0; }
  // How many numbers a forward pass over this rank's micro-batch keeps for backward(), at least.
  [[nodiscard]] virtual double activations() const { return 0; }
  // After load() or load_validation(): the model in float32, with initial weights from LibTorch's
  // default generator. The task keeps it, for loss() and measure(); the trainer gives it weights.
  [[nodiscard]] virtual std::shared_ptr<torch::nn::Module> make_model() = 0;
  // After make_model(): another one, whatever its values are, for the devices of --strategy dp but
  // the first. By default there is none, and dp is refused.
  [[nodiscard]] virtual Replica make_replica() const { return {}; }
  // What parallelize() must know about the model (lockstep/parallel/parallel_plan.h): the modules
  // that are units of --shard, and what --mesh tp, cp and pp need; an axis without its field is
  // refused. After check(); the pieces and their loss after make_model(), with a loss that is
  // loss() of what the last piece gives. By default the model is one unit, which is right for small
  // ones only.
  [[nodiscard]] virtual ParallelPlan parallel_plan() const { return {}; }
  // By how much a batch's mean loss counts in measure(); by default its rows.
  [[nodiscard]] virtual double weight_of(const Batch& batch) const;
  // Before make_model() of a saved model: BadInput where the settings contradict its tensors, so
  // that no file makes a model larger than itself.
  virtual void check_tensors(const checkpoint::NamedTensors& /*tensors*/) const {}

  // Steps in one pass over the training data.
  [[nodiscard]] virtual std::int64_t steps_per_epoch() const = 0;
  // This rank's rows of the global batch of step number `step`, as many as every other rank's: a
  // function of the seed and the step alone, so that a resumed run sees what it would have seen.
  // With --uneven ranks may have other numbers of rows, and none: a Batch without tensors.
  // EpochBatches (epoch_batches.h) gives them of any dataset.
  [[nodiscard]] virtual Batch batch(std::int64_t step) = 0;
  // Mean loss over these rows, one element.
  [[nodiscard]] virtual at::Tensor loss(const Batch& batch) = 0;

  [[nodiscard]] virtual std::int64_t validation_samples() const = 0;
  // The validation samples with these numbers, from 0.
  [[nodiscard]] virtual Batch validation(std::span<const std::size_t> samples) = 0;
  // How many samples are one batch of an evaluation (--eval-batches).
  [[nodiscard]] virtual std::int64_t evaluation_rows() const { return 256; }
  // After load() or load_validation(): how many of them are measured at once. Fewer if a batch
  // would take much memory.
  [[nodiscard]] virtual std::int64_t rows_at_once() const { return evaluation_rows(); }
  // Sums over these samples. By default loss() counts for each row.
  [[nodiscard]] virtual Totals measure(const Batch& batch);
  // Whether measure() counts what was predicted right.
  [[nodiscard]] virtual bool has_accuracy() const { return false; }

  // Tokens of one training sample; 0 where that means nothing.
  [[nodiscard]] virtual std::int64_t tokens_per_sample() const { return 0; }
  // More of the run's last line, as names and values: {"bigram", "2.452"}.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results() const {
    return {};
  }
  // Whether sample() makes something; then there are --sample and --sample-every.
  [[nodiscard]] virtual bool makes_samples() const { return false; }
  // What the model makes up now, in UTF-8; `length` is in the task's units (tokens of a gpt).
  [[nodiscard]] virtual std::string sample(std::int64_t /*length*/) { return {}; }
  // The same where ranks have stages of the model (--mesh pp): by `generate`, which gives tokens
  // behind others, and which all ranks call together.
  [[nodiscard]] virtual std::string sample_by(std::int64_t /*length*/,
                                              const GenerateTokens& /*generate*/) {
    return {};
  }

  // The trainer's: what check_interrupt() calls; empty: nothing.
  void set_interrupt_check(std::function<void()> check) { interrupt_check_ = std::move(check); }

 protected:
  // For a sample() that takes long, between its parts, equally often on all ranks. Throws if a
  // signal asks the run to end; let the exception through.
  void check_interrupt() const {
    if (interrupt_check_) interrupt_check_();
  }

 private:
  std::function<void()> interrupt_check_;
};

// For data_fingerprint(): "1115394 elements, crc32 1a2b3c4d" of the tensors' bytes one behind
// another.
[[nodiscard]] std::string fingerprint_of_tensors(std::initializer_list<at::Tensor> tensors);

// For batch(): the seed of stream number `stream` of a run with this seed. Streams from 0 belong to
// steps; neighbouring numbers give unrelated streams.
[[nodiscard]] std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream);

}  // namespace lockstep::train

#pragma GCC visibility pop
