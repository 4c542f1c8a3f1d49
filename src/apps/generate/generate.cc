// lockstep-generate: text that a gpt of `lockstep train` makes up, printed while it is made.
#include "apps/program.h"
#include "base/check.h"
#include "base/text.h"

#include <lockstep/train/generation.h>
#include <lockstep/train/saved_model.h>

#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace lockstep;

constexpr const char* command = "lockstep generate";
constexpr const char* about =
    "Prints the prompt and text that a trained gpt makes up behind it. RUN is the folder of a "
    "run,\n"
    "a checkpoint folder in it, or a file model.safetensors. The same file, prompt and seed give "
    "the\n"
    "same text.\n";

struct Given {
  std::string run;
  std::optional<std::string> prompt, temperature;
  std::optional<std::int64_t> top_k;
  std::int64_t tokens = 200;
  std::int64_t seed = 1337;
  bool greedy = false;
};

// Very small ones would make infinite numbers of finite ones.
double temperature_of(const std::string& text) {
  constexpr double least = 0.01, most = 100;
  std::optional<double> value = parse_number(text);
  check_input(value && (*value == 0 || (*value >= least && *value <= most)),
              "expected 0 or a number from {} to {}, found '{}'", least, most, text);
  return *value;
}

CommandOptions declared(Given& given) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  CommandOptions options(command, "RUN [OPTIONS]", about, CommandOptions::Words::allowed);
  options.add({"prompt", "TEXT", "what to begin with; -: standard input; a new line without it"},
              [&](const std::string& text) { given.prompt = text; });
  options.add({"tokens", "N", "characters (or bytes) to make", "200"},
              number_into(given.tokens, 0, most));
  options.add({"temperature", "T", "below 1: likelier text; above: stranger; 0: as --greedy", "1"},
              [&](const std::string& text) {
                (void)temperature_of(text);
                given.temperature = text;
              });
  options.add({"top-k", "K", "draw among the K likeliest tokens only; 0: among all", "0"},
              [&](const std::string& text) { given.top_k = checked_number(text, 0, most); });
  options.add({"seed", "S", "which text", "1337"}, number_into(given.seed, 0, most));
  options.add({"greedy", "", "always the likeliest token"}, flag_into(given.greedy));
  return options;
}

void take_run(Given& given, const std::vector<std::string>& words) {
  if (words.empty())
    throw UsageError("RUN is missing: name a run's folder or a file model.safetensors");
  if (words.size() > 1)
    throw UsageError(
        formatted("unexpected word '{}' behind {}: one RUN is read, and a prompt is "
                  "written --prompt TEXT",
                  words[1], words[0]));
  given.run = words[0];
  if (given.greedy && (given.temperature || given.top_k))
    throw UsageError("give --greedy, or --temperature and --top-k, not both");
}

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

int generate(const Given& given) {
  train::SavedModel saved = train::read_model(given.run);
  models::Gpt model = train::gpt_of(saved);
  train::GenerationOptions options{.tokens = given.tokens,
                                   .top_k = given.top_k.value_or(0),
                                   .seed = static_cast<std::uint64_t>(given.seed),
                                   .with_prompt = given.prompt.has_value()};
  if (given.temperature) options.temperature = temperature_of(*given.temperature);
  if (given.greedy) options.temperature = 0;
  options.prompt = given.prompt.value_or(train::default_prompt(*saved.vocabulary));
  if (given.prompt == "-") options.prompt = standard_input();
  try {
    train::check_prompt(*saved.vocabulary, options.prompt);
  } catch (const BadInput& error) {
    throw UsageError(error.what());
  }
  train::generate_text(model, *saved.vocabulary, options, apps::write_out);
  apps::write_out("\n");
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> words(arguments + 1, arguments + count);
  return sys::run_program(command, [&] {
    Given given;
    CommandOptions options = declared(given);
    auto request = options.read(words);
    if (auto code = apps::answer(request, options)) return *code;
    take_run(given, options.words());
    return generate(given);
  });
}
