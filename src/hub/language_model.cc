#include <lockstep/hub/language_model.h>

#include <lockstep/module/state_dict.h>

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/folders.h"
#include "checkpoint/tensor_files.h"
#include "hub/config.h"
#include "module/tensors.h"
#include "sys/files.h"

#include <ATen/ops/zeros.h>

#include <set>
#include <string>
#include <string_view>

namespace lockstep::hub {
namespace {

// transformers stores GPT-2's linear layers as [in, out] (its Conv1D).
bool is_transposed(const models::Gpt&, std::string_view name) {
  return name.ends_with("attn.c_attn.weight") || name.ends_with("attn.c_proj.weight") ||
         name.ends_with("mlp.c_fc.weight") || name.ends_with("mlp.c_proj.weight");
}
bool is_transposed(const models::Llama&, std::string_view) { return false; }

// Buffers that older versions of transformers saved with the parameters: causal masks of GPT-2,
// rotary frequencies of Llama. The modules compute their own.
bool is_passed_over(const models::Gpt&, std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}
bool is_passed_over(const models::Llama&, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

// Returns the entry of the tensor that the module calls `name`, or null. Models are also published
// without their head (GPT2Model, LlamaModel); the files then omit the prefix `transformer.` or
// `model.`.
const checkpoint::TensorEntry* entry_of(const checkpoint::TensorFiles& files,
                                        const std::string& name) {
  const checkpoint::TensorEntry* entry = files.find(name);
  for (const std::string_view prefix :
       {std::string_view("transformer."), std::string_view("model.")})
    if (entry == nullptr && name.starts_with(prefix))
      entry = files.find(name.substr(prefix.size()));
  return entry;
}

// transformers saves weights as pickles with safe_serialization=False.
void check_has_safetensors(const std::filesystem::path& folder) {
  if (checkpoint::has_tensors(folder / checkpoint::model_file)) return;
  check_input(!sys::exists(folder / "pytorch_model.bin"),
              "{}: has pytorch_model.bin, but no safetensors: write them with `lockstep checkpoint "
              "convert {} NEW`",
              folder.string(), folder.string());
  check_input(!sys::exists(folder / "pytorch_model.bin.index.json"),
              "{}: has shards of pytorch_model.bin, but no safetensors: write them with "
              "save_pretrained() of transformers",
              folder.string());
}

void check_entry(const checkpoint::TensorFiles& files, const checkpoint::TensorEntry& entry,
                 at::IntArrayRef expected) {
  const std::string file = files.shard_of(entry).path.string();
  check_input(at::IntArrayRef(entry.shape) == expected,
              "{}: tensor '{}' has shape {}, config.json says {}", file, escaped(entry.name),
              c10::str(at::IntArrayRef(entry.shape)), c10::str(expected));
  check_input(c10::isFloatingType(entry.dtype),
              "{}: tensor '{}' has dtype {}, expected a floating-point one", file,
              escaped(entry.name), c10::toString(entry.dtype));
}

// Checks the size of one tensor before the model is allocated, because config.json may describe a
// model that does not fit into memory. `name` is the module's name for the tensor.
void check_size(const checkpoint::TensorFiles& files, const std::filesystem::path& folder,
                const std::string& name, at::IntArrayRef expected) {
  const checkpoint::TensorEntry* entry = entry_of(files, name);
  check_input(entry != nullptr, "{}: has no tensor '{}', which config.json requires",
              folder.string(), escaped(name));
  check_entry(files, *entry, expected);
}

void check_sizes(const models::GptOptions& options, const checkpoint::TensorFiles& files,
                 const std::filesystem::path& folder) {
  const std::string last = formatted("transformer.h.{}.", options.layers - 1);
  check_size(files, folder, "transformer.wte.weight", {options.vocabulary, options.hidden_size});
  check_size(files, folder, "transformer.wpe.weight",
             {options.context_length, options.hidden_size});
  check_size(files, folder, last + "ln_1.weight", {options.hidden_size});
}

void check_sizes(const models::LlamaOptions& options, const checkpoint::TensorFiles& files,
                 const std::filesystem::path& folder) {
  const std::string last = formatted("model.layers.{}.", options.layers - 1);
  const std::int64_t heads = options.heads * options.head_width;
  check_size(files, folder, "model.embed_tokens.weight", {options.vocabulary, options.hidden_size});
  check_size(files, folder, last + "self_attn.q_proj.weight", {heads, options.hidden_size});
  check_size(files, folder, last + "mlp.gate_proj.weight",
             {options.intermediate_size, options.hidden_size});
}

// A tensor of the module and its entry in the files. Aliases come after their tensors.
struct Filling {
  const checkpoint::TensorEntry& entry;
  at::Tensor tensor;  // transposed if the file stores it transposed
  bool is_alias;
};

template <class Model>
std::vector<Filling> plan(const Model& model, const checkpoint::TensorFiles& files,
                          const std::filesystem::path& folder) {
  std::set<std::string> aliases, known;
  for (const Alias& alias : aliases_of(*model)) aliases.insert(alias.name);
  std::vector<Filling> fillings;
  for (const NamedTensor& item : named_tensors(*model)) {
    const checkpoint::TensorEntry* entry = entry_of(files, item.name);
    const bool is_alias = aliases.contains(item.name);
    if (entry == nullptr && is_alias) continue;
    check_input(entry != nullptr, "{}: has no tensor '{}', which config.json requires",
                folder.string(), escaped(item.name));
    const at::Tensor tensor = is_transposed(model, item.name) ? item.tensor.t() : item.tensor;
    check_entry(files, *entry, tensor.sizes());
    known.insert(entry->name);
    fillings.push_back({*entry, tensor, is_alias});
  }
  for (const checkpoint::TensorEntry& entry : files.entries())
    check_input(known.contains(entry.name) || is_passed_over(model, entry.name),
                "{}: tensor '{}' is not part of the model in config.json",
                files.shard_of(entry).path.string(), escaped(entry.name));
  return fillings;
}

template <class Model, class Options>
Model made(const Options& options, const std::filesystem::path& folder) {
  try {
    return Model(options);
  } catch (const InvalidArgument& error) {
    throw BadInput(formatted("{}: {}", (folder / "config.json").string(), error.what()));
  }
}

template <class Model, class Options>
LanguageModel loaded(const Options& options, const std::filesystem::path& folder) {
  check_has_safetensors(folder);
  const checkpoint::TensorFiles files(folder / checkpoint::model_file);
  check_sizes(options, files, folder);
  check_input(std::ssize(files.entries()) >= options.layers,
              "{}: expected tensors of {} layers as in config.json, found {} tensors in all",
              folder.string(), options.layers, files.entries().size());
  Model model = made<Model>(options, folder);
  c10::NoGradGuard no_grad;
  for (Filling& filling : plan(model, files, folder)) {
    const at::Tensor values = files.read(filling.entry);
    if (!filling.is_alias)
      filling.tensor.copy_(values);
    else
      check_input(
          modules::have_equal_values(filling.tensor, values.to(filling.tensor.scalar_type())),
          "{}: tensor '{}' differs from the embedding that it is tied to",
          files.shard_of(filling.entry).path.string(), escaped(filling.entry.name));
  }
  model->eval();
  return model;
}

}  // namespace

LanguageModel load_language_model(const std::filesystem::path& folder) {
  const ModelOptions options = read_config(folder);
  if (const auto* gpt = std::get_if<models::GptOptions>(&options))
    return loaded<models::Gpt>(*gpt, folder);
  return loaded<models::Llama>(std::get<models::LlamaOptions>(options), folder);
}

namespace {

// Adds zero biases for a Gpt without biases, because a GPT-2 has biases everywhere.
void add_biases(const models::Gpt& model, checkpoint::NamedTensors& tensors) {
  if (model->options().bias) return;
  constexpr std::string_view ending = ".weight";
  for (const NamedTensor& item : named_tensors(*model)) {
    const bool is_table = item.name.ends_with("wte.weight") || item.name.ends_with("wpe.weight") ||
                          item.name == "lm_head.weight";
    if (!item.name.ends_with(ending) || is_table) continue;
    const std::string module = item.name.substr(0, item.name.size() - ending.size());
    tensors.emplace(module + ".bias", at::zeros({item.tensor.size(0)}, item.tensor.options()));
  }
}
void add_biases(const models::Llama&, checkpoint::NamedTensors&) {}

}  // namespace

void save_language_model(const std::filesystem::path& folder, const LanguageModel& model,
                         checkpoint::ShardedWriting how) {
  std::visit(
      [&](const auto& model) {
        const std::string config = config_text(model->options());
        std::set<std::string> aliases;
        for (const Alias& alias : aliases_of(*model)) aliases.insert(alias.name);
        checkpoint::NamedTensors tensors;
        for (const NamedTensor& item : named_tensors(*model)) {
          if (aliases.contains(item.name)) continue;
          tensors.emplace(item.name,
                          is_transposed(model, item.name) ? item.tensor.t() : item.tensor);
        }
        add_biases(model, tensors);
        checkpoint::write_weight_folder(folder, checkpoint::sources_of(tensors), {{"format", "pt"}},
                                        how, config);
      },
      model);
}

}  // namespace lockstep::hub
