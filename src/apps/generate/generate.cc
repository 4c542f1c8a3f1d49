// lockstep-generate: generates text with a gpt of `lockstep train` and prints it while it is
// generated; or generates tokens with a model in a folder of the model hubs.
#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "comm/init/choice.h"
#include "module/checks.h"
#include "rank_env/rank_info.h"
#include "sys/program.h"
#include "train/device.h"

#include <lockstep/comm/init.h>
#include <lockstep/hub/language_model.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/model_plans.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/train/generation.h>
#include <lockstep/train/saved_model.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/types.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace {

using namespace lockstep;

constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
constexpr const char* command = "lockstep generate";
constexpr const char* about =
    "Prints the prompt and text that a trained gpt makes up behind it. RUN is the folder of a "
    "run,\n"
    "a checkpoint folder in it, or a file model.safetensors. The same file, prompt and seed give "
    "the\n"
    "same text.\n"
    "\n"
    "With --model FOLDER, a GPT-2 or Llama as the model hubs lay it out (config.json and\n"
    "model.safetensors, one file or shards with an index): --tokens IDS are the numbers of the\n"
    "prompt's tokens, and they are printed with --new-tokens more behind them.\n";

struct Given {
  std::string run;
  std::string bpe;
  std::optional<std::string> model, tokens_text;
  std::optional<std::int64_t> new_tokens;
  std::optional<std::string> prompt;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::string mesh, device;
  std::int64_t tokens = 200;
  std::int64_t seed = 1337;
  bool greedy = false;
};

// Returns true if a process that runs alone should compute on a device, which init() chooses.
bool needs_device(const std::string& device) {
  return !is_cpu(device) && (!device.empty() || at::accelerator::deviceCount() > 0);
}

// The ranks that compute a model together (only this process without --mesh), and their devices.
class Ranks {
 public:
  Ranks(const std::string& mesh, const std::string& device) {
    if (mesh.empty()) {
      const int ranks = rank_env::detect_rank().size;
      check_input(ranks == 1,
                  "--mesh is missing: each of {} ranks would print the text: give --mesh tp={}, or "
                  "start one process, without RANK and WORLD_SIZE in its environment",
                  ranks, ranks);
      if (needs_device(device)) group_ = init({.device = device});
      return;
    }
    const std::vector<MeshAxis> axes = parse_axes(mesh);
    check_input(axes.size() == 1 && axes.front().name == "tp",
                "--mesh {}: expected the axis tp alone, such as tp=2", escaped(mesh));
    group_ = init({.device = device});
    const int wanted = axes.front().size;
    check_input(wanted == -1 || wanted == group_.size(),
                "--mesh {}: expected as many ranks as tp, {}, found {}: start them with lockstep "
                "run -n {} lockstep generate ...",
                mesh, wanted, group_.size(), wanted);
    is_parallel_ = true;
  }

  // Moves the model to the device and shards it. The caller must keep the handle while it uses the
  // model. For a model with mixtures of experts, each rank has all experts and a part of everything
  // else.
  [[nodiscard]] ParallelModel divide(std::shared_ptr<torch::nn::Module> model,
                                     const TensorPlan& plan) const {
    move_to(*model, device());
    if (!is_parallel_) return {};
    return parallelize(std::move(model), Mesh(group_, {{"tp", group_.size()}}), {.tensor = plan});
  }
  // Returns what standard input has. Only rank 0 of a launched group has one.
  [[nodiscard]] std::string standard_input() {
    const auto read = [] { return std::string(std::istreambuf_iterator<char>(std::cin), {}); };
    return is_parallel_ ? modules::text_of_root(group_, read) : read();
  }
  // If several ranks compute together, writes on rank 0 only.
  void write(std::string_view text) const {
    if (!is_parallel_ || group_.rank() == 0) sys::write_out(text);
  }

 private:
  Group group_;
  bool is_parallel_ = false;
};

// A very small temperature would turn finite logits into inf.
double temperature_of(const std::string& text) {
  constexpr double least = 0.01, most = 100;
  std::optional<double> value = parse_number(text);
  check_input(value && (*value == 0 || (*value >= least && *value <= most)),
              "expected 0 or a number from {} to {}, found '{}'", least, most, text);
  return *value;
}

CommandOptions declared(Given& given) {
  CommandOptions options(command, "RUN [OPTIONS], or --model FOLDER --tokens IDS [OPTIONS]", about,
                         CommandOptions::Words::allowed);
  options.add({"prompt", "TEXT", "what to begin with; -: standard input; a new line without it"},
              [&](const std::string& text) { given.prompt = text; });
  options.add(
      {"tokens", "N", "characters (bytes, tokens) to make; with --model: IDS, as 464,3290", "200"},
      [&](const std::string& text) { given.tokens_text = text; });
  options.add({"bpe", "FOLDER",
               "of a RUN with --vocabulary bpe: its vocab.json and merges.txt, where they are not "
               "where they were"},
              [&](const std::string& text) { given.bpe = text; });
  options.add({"model", "FOLDER", "a GPT-2 or Llama as the model hubs lay it out"},
              [&](const std::string& text) { given.model = text; });
  options.add(
      {"new-tokens", "N", "with --model: tokens to make", "20"},
      [&](const std::string& text) { given.new_tokens = checked_number(text, 0, most_tokens); });
  options.add({"temperature", "T", "sampling temperature; 0: as --greedy", "1"},
              [&](const std::string& text) { given.temperature = temperature_of(text); });
  options.add({"top-k", "K", "draw among the K likeliest tokens only; 0: among all", "0"},
              [&](const std::string& text) { given.top_k = checked_number(text, 0, most_tokens); });
  options.add({"seed", "S", "random seed", "1337"}, number_into(given.seed, 0, most_tokens));
  options.add({"mesh", "AXES",
               "tp=2: 2 ranks compute the model together (lockstep run -n 2 lockstep generate)"},
              [&](const std::string& text) { given.mesh = text; });
  options.add({"device", "DEVICE",
               "where to compute: cpu, cuda or cuda:N; without it, a GPU if the process sees one"},
              [&](const std::string& text) { given.device = text; });
  options.add({"greedy", "", "always the likeliest token"}, flag_into(given.greedy));
  return options;
}

void take_run(Given& given, const std::vector<std::string>& words) {
  try {
    train::check_device(given.device);
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
  if (given.greedy && (given.temperature || given.top_k))
    throw UsageError("give --greedy, or --temperature and --top-k, not both");
  if (given.greedy) given.temperature = 0;
  if (given.model) {
    if (!words.empty())
      throw UsageError(
          formatted("unexpected word '{}': --model names the model, so no RUN is read", words[0]));
    if (given.prompt)
      throw UsageError("--prompt is for a RUN; with --model give the prompt as --tokens IDS");
    if (!given.bpe.empty()) throw UsageError("--bpe is for a RUN; with --model tokens are numbers");
    if (!given.tokens_text)
      throw UsageError(
          "--tokens is missing: --model needs the prompt as token ids, such as --tokens 464,3290");
    return;
  }
  if (words.empty())
    throw UsageError("RUN is missing: name a run's folder or a file model.safetensors");
  if (words.size() > 1)
    throw UsageError(
        formatted("unexpected word '{}' after {}: give one RUN, and the prompt as --prompt TEXT",
                  words[1], words[0]));
  if (given.new_tokens) throw UsageError("--new-tokens is for --model; with a RUN give --tokens N");
  given.run = words[0];
  if (!given.tokens_text) return;
  try {
    given.tokens = checked_number(*given.tokens_text, 0, most_tokens);
  } catch (const BadInput& error) {
    throw UsageError(formatted("--tokens: {}", error.what()));
  }
}

// As in transformers, a Llama may continue past its trained positions, while a GPT-2, which has a
// position table, throws.
void check_positions(const models::Gpt& model, std::int64_t prompt, std::int64_t more) {
  const std::int64_t block = model->options().context_length;
  check_input(more == 0 || prompt + more - 1 <= block,
              "this GPT-2 has {} positions, and {} of the prompt with --new-tokens {} need "
              "{}: make at most {}",
              block, counted(prompt, "token"), more, prompt + more - 1,
              counted(std::max<std::int64_t>(0, block - prompt + 1), "new token"));
}
void check_positions(const models::Llama&, std::int64_t, std::int64_t) {}

// Parses ids and checks them against the size of the vocabulary.
at::Tensor ids_in(const std::string& text, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  const auto take = [&](const std::string& word) {
    std::optional<std::int64_t> id = parse_integer(word);
    if (!id || *id < 0 || *id >= vocabulary)
      throw UsageError(
          formatted("--tokens: expected token ids from 0 to {}, separated by commas, found '{}'",
                    vocabulary - 1, escaped(word)));
    ids.push_back(*id);
  };
  each_of(take)(text);
  return torch::tensor(ids, at::kLong).unsqueeze(0);
}

int generate_from_model(const Given& given) {
  const models::GenerateOptions options{
      .temperature = given.temperature.value_or(1),
      .top_k = given.top_k.value_or(0),
      .beyond_block = true,
      .generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(given.seed))};
  const Ranks ranks(given.mesh, given.device);
  hub::LanguageModel model = hub::load_language_model(*given.model);
  at::Tensor ids = std::visit(
      [&](auto& model) {
        const at::Tensor prompt = ids_in(*given.tokens_text, model->options().vocabulary);
        const std::int64_t more = given.new_tokens.value_or(20);
        check_positions(model, prompt.size(1), more);
        const ParallelModel parts = ranks.divide(model.ptr(), parallel_plan(model).tensor);
        return model->generate(prompt, more, options);
      },
      model);
  std::string line;
  for (std::int64_t i = 0; i < ids.size(1); ++i)
    line += formatted("{}{}", i > 0 ? "," : "", ids[0][i].item<std::int64_t>());
  ranks.write(line + "\n");
  return 0;
}

int generate(const Given& given) {
  Ranks ranks(given.mesh, given.device);
  train::SavedModel saved = train::read_model(given.run, given.bpe);
  const train::SavedLanguageModel model = train::language_model_of(saved);
  const ParallelModel parts = ranks.divide(model.module, model.plan);
  train::GenerationOptions options{.tokens = given.tokens,
                                   .temperature = given.temperature.value_or(1),
                                   .top_k = given.top_k.value_or(0),
                                   .seed = static_cast<std::uint64_t>(given.seed),
                                   .with_prompt = given.prompt.has_value()};
  options.prompt = given.prompt.value_or(train::default_prompt(*saved.tokenizer));
  if (given.prompt == "-") options.prompt = ranks.standard_input();
  try {
    train::check_prompt(*saved.tokenizer, options.prompt);
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
  train::generate_text(model.generate, model.block, *saved.tokenizer, options,
                       [&](std::string_view text) { ranks.write(text); });
  ranks.write("\n");
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> words(arguments + 1, arguments + count);
  return sys::run_program(command, [&] {
    Given given;
    CommandOptions options = declared(given);
    if (const auto code = sys::answer(options.read(words), options)) return *code;
    take_run(given, options.words());
    return given.model ? generate_from_model(given) : generate(given);
  });
}
