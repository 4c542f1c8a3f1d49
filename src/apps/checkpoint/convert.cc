#include "apps/checkpoint/source.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/tensor_files.h"
#include "checkpoint/torch_values.h"
#include "module/tensors.h"
#include "sys/files.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/torch_file.h>
#include <lockstep/comm/group.h>
#include <lockstep/hub/language_model.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/train/saved_model.h>

#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<torch::nn::Module> module_of(const checkpoint::TensorSources& tensors) {
  auto module = std::make_shared<torch::nn::Module>();
  for (const auto& [name, tensor] : tensors) {
    try {
      at::Tensor values = tensor.values().detach().contiguous().clone();
      const at::ScalarType dtype = values.scalar_type();
      if (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
          dtype == at::kBFloat16)
        modules::add_parameter(*module, name, values.requires_grad_());
      else
        modules::add_buffer(*module, name, values);
    } catch (const c10::Error& error) {
      throw BadInput(
          formatted("tensor '{}': a module cannot have this name together with the other names: {}",
                    escaped(name), escaped(error.what_without_backtrace(), 200)));
    }
  }
  return module;
}

bool has_field(const checkpoint::TensorSources& state, std::string_view field) {
  return std::ranges::any_of(
      state, [&](const auto& item) { return item.first.ends_with(formatted(".{}", field)); });
}

// Makes an optimizer whose class follows from the fields of the state; hyperparameters are not
// saved.
std::unique_ptr<torch::optim::Optimizer> optimizer_for(const checkpoint::TensorSources& state,
                                                       const checkpoint::NamedParameters& named) {
  // An Adagrad has a state for each of its parameters from the beginning.
  const bool is_adagrad =
      !has_field(state, "exp_avg") && !has_field(state, "square_avg") && has_field(state, "sum");
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : named)
    if (!is_adagrad || state.contains(formatted("optimizer.{}.sum", name)))
      parameters.push_back(parameter);
  using namespace torch::optim;
  if (has_field(state, "exp_avg"))
    return std::make_unique<AdamW>(std::move(parameters),
                                   AdamWOptions().amsgrad(has_field(state, "max_exp_avg_sq")));
  if (has_field(state, "square_avg"))
    return std::make_unique<RMSprop>(std::move(parameters),
                                     RMSpropOptions()
                                         .momentum(has_field(state, "momentum_buffer") ? 0.9 : 0)
                                         .centered(has_field(state, "grad_avg")));
  if (is_adagrad) return std::make_unique<Adagrad>(std::move(parameters));
  return std::make_unique<SGD>(std::move(parameters), SGDOptions(0.1).momentum(0.9));
}

// Throws BadInput for names that a module cannot have, or for the state of an unsupported
// optimizer, and errors of checkpoint::save().
void save_step(const fs::path& path, const Source& source) {
  const std::shared_ptr<torch::nn::Module> module = module_of(source.model);
  checkpoint::NamedParameters named;
  for (const auto& item : module->named_parameters()) named.emplace_back(item.key(), item.value());
  check_input(!named.empty(), "expected a model with floating-point parameters, found none");
  const auto optimizer = optimizer_for(source.optimizer, named);
  checkpoint::NamedTensors state;
  for (const auto& [name, tensor] : source.optimizer) state.emplace(name, tensor.values());
  try {
    checkpoint::load_optimizer_state(*optimizer, named, state);
  } catch (const BadInput& problem) {
    throw BadInput(
        formatted("expected the optimizer state of Adam, AdamW, SGD, RMSprop or Adagrad, found "
                  "another one: {}",
                  problem.what()));
  }
  DistributedDataParallel handle(module, Group());
  checkpoint::TrainingState training = source.training.value_or(checkpoint::TrainingState());
  training.step = checkpoint::step_of(path.filename());
  fs::path run = path.parent_path();
  if (run.empty()) run = ".";
  checkpoint::Metadata description = source.metadata;
  checkpoint::save(run, handle, *optimizer, training, {.description = std::move(description)});
}

using checkpoint::Dict;
using checkpoint::empty_dict;
using checkpoint::TensorSources;

enum class Target { safetensors, torch_file, step, folder };

Target target_of(const fs::path& to) {
  const std::string ending = to.extension().string();
  if (ending == ".safetensors") return Target::safetensors;
  if (ending == ".pt" || ending == ".pth" || ending == ".bin") return Target::torch_file;
  return checkpoint::step_of(to.filename()) >= 0 ? Target::step : Target::folder;
}

Dict as_dict(const TensorSources& tensors) {
  Dict values = empty_dict();
  for (const auto& [name, tensor] : tensors) values.insert(name, tensor.values());
  return values;
}

// Returns {"state": {"fc.weight": {"step": ..., "exp_avg": ...}}}, indexed by name, because
// Python's numbers of the parameters are unknown here.
Dict optimizer_dict(const TensorSources& state) {
  constexpr std::string_view prefix = "optimizer.";
  Dict parameters = empty_dict();
  for (const auto& [key, tensor] : state) {
    const std::size_t point = key.rfind('.');
    const std::string name = key.substr(prefix.size(), point - prefix.size());
    if (!parameters.contains(name)) parameters.insert(name, empty_dict());
    const at::Tensor values = tensor.values();
    const std::string field = key.substr(point + 1);
    parameters.at(name).toGenericDict().insert(field,
                                               field == "step" ? values.to(at::kFloat) : values);
  }
  Dict optimizer = empty_dict();
  optimizer.insert("state", parameters);
  return optimizer;
}

c10::IValue value_of(const Source& source) {
  if (source.value) return source.value();
  if (!source.training) return as_dict(source.model);
  Dict all = empty_dict();
  all.insert("model", as_dict(source.model));
  if (!source.optimizer.empty()) all.insert("optimizer", optimizer_dict(source.optimizer));
  all.insert("step", source.training->step);
  all.insert("epoch", source.training->epoch);
  return all;
}

checkpoint::Metadata metadata_of(const Source& source) {
  checkpoint::Metadata metadata = source.metadata;
  metadata.emplace("format", "pt");  // transformers requires this entry
  return metadata;
}

// Returns the model if the metadata says that it is a gpt or llama of `lockstep train`. A gpt
// already has the names of GPT-2, but another layout of weights. Neither has a config.json.
std::optional<hub::LanguageModel> own_language_model(const fs::path& from, const Source& source) {
  const auto task = source.metadata.find("task");
  if (source.config || task == source.metadata.end()) return std::nullopt;
  // For a run's folder, read_model() may take the model of another step than `source` has.
  const fs::path model = source.training ? one_at(from) : from;
  if (task->second == "gpt") return train::gpt_of(train::read_model(model));
  if (task->second == "llama") return train::llama_of(train::read_model(model));
  return std::nullopt;
}

void write_folder(const fs::path& from, const fs::path& to, const Source& source,
                  const ConvertOptions& options) {
  const checkpoint::ShardedWriting how{.shard_bytes =
                                           static_cast<std::uint64_t>(options.shard_bytes)};
  if (const auto model = own_language_model(from, source))
    hub::save_language_model(to, *model, how);
  else
    checkpoint::write_weight_folder(to, source.model, metadata_of(source), how, source.config);
}

std::string remarks_on(const Source& source, Target target) {
  std::vector<std::string> remarks;
  if (target == Target::step) {
    if (source.optimizer.empty()) remarks.push_back("without optimizer state");
    if (!source.assumed.empty()) remarks.push_back(source.assumed);
    remarks.push_back(source.training
                          ? "with new random states: `reshard` copies everything"
                          : "for a program's checkpoint::load(), not for `lockstep train`");
  } else if (target != Target::torch_file) {
    if (source.has_more) remarks.push_back("everything except the model was left out");
    if (!source.optimizer.empty()) remarks.push_back("the optimizer state was left out");
  }
  if (!source.left_out.empty()) remarks.push_back("without " + source.left_out);
  std::string text;
  for (const std::string& remark : remarks) text += "; " + remark;
  return text;
}

}  // namespace

std::string convert(const fs::path& from, const fs::path& to, ConvertOptions options) {
  const Target target = target_of(to);
  check_input(!fs::exists(to) || !fs::exists(from) || !fs::equivalent(from, to),
              "convert: FROM and TO must differ, found {} twice", from.string());
  check_input(!fs::exists(to) || fs::is_directory(to) == (target == Target::folder),
              "{}: expected {}, found {}", to.string(),
              target == Target::folder ? "a folder or nothing"
              : target == Target::step ? "nothing"
                                       : "a file or nothing",
              fs::is_directory(to) ? "a folder" : "a file");
  options.source.for_checkpoint = target == Target::step;
  const Source source = source_at(from, options.source);
  check_input(!source.model.empty(), "{}: expected tensors, found none", from.string());
  check_input(target != Target::step || !source.config,
              "{}: a model from a model hub cannot become a checkpoint of a run; read it with "
              "hub::load_language_model() or `lockstep generate --model`",
              from.string());
  if (target == Target::safetensors) {
    sys::AtomicFile file(to);
    checkpoint::write_tensors(file, source.model, metadata_of(source), {});
    file.commit();
  } else if (target == Target::torch_file) {
    checkpoint::write_torch_file(to, value_of(source));
  } else if (target == Target::step) {
    save_step(to, source);
  } else {
    write_folder(from, to, source, options);
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : source.model) bytes += tensor.bytes();
  return formatted("{}: {} of the model in {}, from {}{}\n", to.string(),
                   format_bytes(static_cast<std::int64_t>(bytes)),
                   counted(static_cast<std::int64_t>(source.model.size()), "tensor"), source.kind,
                   remarks_on(source, target));
}

}  // namespace lockstep::apps
