#include "train/evaluator.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "elastic/slot_layout.h"
#include "sys/files.h"
#include "train/configuration.h"
#include "train/device.h"
#include "train/interrupt.h"
#include "train/model.h"
#include "train/progress.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/train/saved_model.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <numbers>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// Returns the number of samples in `batches` batches of `rows` rows, at most `all`; with 0 batches,
// all.
std::int64_t samples_in(std::int64_t batches, std::int64_t rows, std::int64_t all) {
  if (batches <= 0) return all;
  if (rows <= 0) return 0;
  return batches > all / rows ? all : batches * rows;  // the larger product might overflow
}

std::int64_t divided_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

// Returns a number of parts of at most `rows` samples: equally many for each rank, if there are
// enough samples.
std::int64_t parts_of(std::int64_t samples, std::int64_t rows, int ranks) {
  return std::min(samples, divided_up(samples, rows * ranks) * ranks);
}

// Returns the means over samples 0 ... samples - 1, split into `parts`. One rank measures each
// part; with `in_step`, a rank may have only a part of the model.
Evaluation evaluate_parts(Group& group, std::int64_t samples, std::int64_t parts, bool in_step,
                          const Measure& measure, const std::function<bool()>& stops) {
  at::NoGradGuard no_gradients;
  // The last element counts the ranks that stopped.
  std::vector<Totals> totals(static_cast<std::size_t>(parts + 1));
  const auto measured = [&](std::int64_t part) {
    std::vector<std::size_t> numbers;
    for (std::int64_t i = samples * part / parts; i < samples * (part + 1) / parts; ++i)
      numbers.push_back(static_cast<std::size_t>(i));
    return measure(numbers);
  };
  const layout::Range own = slots_of_rank(parts, group.rank(), group.size());
  // With `in_step`, every rank calls the sharded model equally often.
  const std::int64_t passes = in_step ? divided_up(parts, group.size()) : own.length();
  bool is_stopped = false;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    is_stopped = stops();
    if (is_stopped) break;
    if (pass < own.length())
      totals[static_cast<std::size_t>(own.begin + pass)] = measured(own.begin + pass);
    else
      static_cast<void>(measured(0));
  }
  totals.back().loss = is_stopped ? 1 : 0;
  // The zeros of the other ranks do not change any value.
  static_assert(sizeof(Totals) == 3 * sizeof(double));
  group.all_reduce(at::from_blob(totals.data(), {3 * parts + 3}, at::kDouble), Op::sum).wait();
  if (totals.back().loss > 0) throw Interrupted();
  totals.pop_back();
  Totals all;
  for (const Totals& of_part : totals) all += of_part;
  return {.loss = all.loss / all.targets, .accuracy = all.correct / all.targets};
}

Best best_in(const std::filesystem::path& file, const checkpoint::Metadata& basis) {
  if (!sys::exists(file)) return {};
  try {
    checkpoint::Metadata metadata = checkpoint::read_safetensors(file, {.tensors = false}).metadata;
    checkpoint::Metadata own;
    for (const char* name : {"data_fingerprint", "eval_batches"})
      if (auto entry = metadata.find(name); entry != metadata.end()) own.insert(*entry);
    if (own != basis) return {};
    auto val_loss = parse_number(metadata["val_loss"]);
    auto step = parse_integer(metadata["step"]);
    if (val_loss && step) return {.val_loss = *val_loss, .step = *step};
  } catch (const Error&) {  // an unreadable file is not a model
  }
  return {};
}

// Sets the paths of the run's own data from the config.toml next to the model.
void find_own_data(const SavedModel& saved, const EvaluateOptions& options) {
  Settings own(saved.task->name());
  saved.task->declare(own);
  const std::map<std::string, std::string> paths = paths_of_run(saved);
  for (const Settings::Entry& entry : own.entries()) {
    const bool is_bpe = entry.name == "bpe";
    if (!entry.is_path || (is_bpe && !options.bpe.empty())) continue;
    auto found = paths.find(entry.name);
    const bool is_known = found != paths.end();
    std::string path = is_known ? found->second : Settings::text_of(entry);
    own.set(entry.name, path);
    if (!options.data.empty() || (is_known && path.empty())) continue;
    check_input(!path.empty(), "{}: no config.toml beside it names its data: name some with --data",
                saved.file.string());
    check_input(sys::exists(path),
                "{}: the config.toml of its run names the {} {}, which is not there from this "
                "folder: name it with --{}",
                saved.file.string(), is_bpe ? "encoding" : "data", path, is_bpe ? "bpe" : "data");
  }
}

std::string line_of(const SavedModel& saved, const Task& task, const Evaluation& found) {
  std::string line = "val_loss=" + loss_text(found.loss, 5);
  if (task.has_accuracy()) line = formatted("accuracy={:.4f} ", found.accuracy) + line;
  if (saved.tokenizer)
    line += formatted(" bits_per_{}={}", saved.tokenizer->unit(),
                      loss_text(found.loss / std::numbers::ln2, 5));
  for (const auto& [name, value] : task.results()) line += formatted(" {}={}", name, value);
  return line + formatted(" step={} model={}", saved.step, saved.file.string());
}

void check_fingerprint(const SavedModel& saved) {
  const std::string& before = described(saved.metadata, "data_fingerprint");
  const std::string now = saved.task->data_fingerprint();
  check_input(before == now,
              "{}: expected the data that its run was given ({}), found other data ({}) in {}: to "
              "measure all of it, name it with --data",
              saved.file.string(), escaped(before), now,
              Configuration(*saved.task, saved.task->defaults()).data_text());
}

}  // namespace

Evaluation evaluate(Group& group, std::int64_t samples, std::int64_t rows, const Measure& measure,
                    bool in_step) {
  return evaluate_parts(group, samples, parts_of(samples, rows, group.size()), in_step, measure,
                        [] { return false; });
}

Evaluator::Evaluator(Task& task, std::shared_ptr<torch::nn::Module> module, Group world,
                     Options options)
    : task_(task),
      module_(std::move(module)),
      world_(std::move(world)),
      options_(std::move(options)),
      samples_(task.validation_samples()),
      chosen_(samples_in(options_.batches, task.evaluation_rows(), samples_)) {}

Evaluation Evaluator::over(std::int64_t count) {
  const auto mine = static_cast<double>(divided_up(count, world_.size()));
  double done = 0;
  auto measure = [&](std::span<const std::size_t> numbers) {
    std::vector<std::size_t> chosen(numbers.begin(), numbers.end());
    for (std::size_t& number : chosen) number = number * samples_ / count;
    const Batch batch =
        on_device(cast_batch(task_.validation(chosen), options_.compute_dtype), options_.device);
    Totals totals = options_.measure ? options_.measure(batch) : task_.measure(batch);
    done += static_cast<double>(chosen.size());
    if (world_.is_root() && options_.tell && done < mine) options_.tell(done / mine);
    return totals;
  };
  const std::vector<std::shared_ptr<torch::nn::Module>> modules = module_->modules();
  std::vector<bool> were_training;
  for (const auto& module : modules) were_training.push_back(module->is_training());
  module_->eval();
  // A module precedes its submodules in this list, and train() also changes these.
  ScopeExit modes_as_before([&] {
    for (std::size_t i = 0; i < modules.size(); ++i) modules[i]->train(were_training[i]);
  });
  const auto stops = [&] { return options_.stops && options_.stops(); };
  const std::int64_t rows = task_.rows_at_once();
  const std::int64_t parts =
      options_.parts > 0 ? std::min(count, std::max(options_.parts, divided_up(count, rows)))
                         : parts_of(count, rows, world_.size());
  return evaluate_parts(world_, count, parts, options_.in_step, measure, stops);
}

checkpoint::Metadata basis_of(const std::string& data_fingerprint,
                              std::optional<std::int64_t> eval_batches) {
  checkpoint::Metadata basis{{"data_fingerprint", data_fingerprint}};
  if (eval_batches) basis["eval_batches"] = formatted("{}", *eval_batches);
  return basis;
}

Best read_best(Group& group, const std::filesystem::path& file, const checkpoint::Metadata& basis,
               std::int64_t last_step) {
  Best best;
  if (group.is_root()) best = best_in(file, basis);
  if (best.step > last_step) best = {};
  at::Tensor both = at::tensor({best.val_loss, static_cast<double>(best.step)}, at::kDouble);
  group.broadcast(both, 0, {.tag = "best"}).wait();
  const double* values = both.const_data_ptr<double>();
  return {.val_loss = values[0], .step = static_cast<std::int64_t>(values[1])};
}

SavedEvaluation evaluate_saved(const EvaluateOptions& options, Group world,
                               const std::function<void(double)>& tell) {
  std::optional<SavedModel> saved;
  std::shared_ptr<torch::nn::Module> module;
  run_on_all_or_fail(world, [&] {
    saved = read_model(options.run, options.bpe);
    Task& task = *saved->task;
    find_own_data(*saved, options);
    task.load_validation(task.defaults(), world, options.data);
    if (options.data.empty()) check_fingerprint(*saved);
    module = task.make_model();
    load_into(*module, *saved);
    move_to(*module, options.device);
  });
  Task* task = saved->task.get();
  Evaluator evaluator(*task, module, world,
                      {.batches = options.batches, .device = options.device, .tell = tell});
  Evaluation found = evaluator.chosen();
  SavedEvaluation result{.val_loss = found.loss, .line = line_of(*saved, *task, found)};
  if (evaluator.is_partial()) result.line += formatted(" eval_batches={}", options.batches);
  if (task->has_accuracy()) result.accuracy = found.accuracy;
  return result;
}

}  // namespace lockstep::train
