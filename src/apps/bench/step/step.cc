#include "apps/bench/step/step.h"

#include "apps/bench/python.h"
#include "apps/bench/step/modes.h"
#include "apps/bench/step/report.h"
#include "apps/bench/step/tail.h"
#include "apps/bench/step/trigger.h"

#include "base/command_options.h"

#include <lockstep/base/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace lockstep::apps {
namespace {

using Names = std::vector<StepContenderName>;

std::vector<std::string> all_of(std::span<const std::string_view> modes) {
  return {modes.begin(), modes.end()};
}

// Ours, then PyTorch's.
Names contenders_of(const StepOptions& options) {
  bool whole = options.modes.empty();
  std::vector<std::string> ours = whole ? all_of(our_modes()) : options.modes;
  std::vector<std::string> theirs = options.against;
  if (theirs.empty()) theirs = whole ? all_of(pytorch_modes()) : counterparts_of(ours);
  Names names;
  for (std::string& mode : ours) names.push_back({"lockstep", std::move(mode)});
  for (std::string& mode : theirs) names.push_back({"pytorch", std::move(mode)});
  return names;
}

RankCommand command_of(const StepContenderName& name, const StepOptions& options, bool fused) {
  RankCommand command{.name = title_of(name), .ranks = options.ranks, .threads = options.threads};
  if (name.system == "pytorch") {
    command.program = find_python(options.python);
    command.arguments = {"-W", "ignore", peer_file("step.py"), "--serve"};
  } else {
    command.program = std::filesystem::read_symlink("/proc/self/exe");
    command.arguments = {"step-rank"};
  }
  for (std::string& word : rank_words(
           {options.model, size_of(options, options.model), name.mode, options.threads, fused}))
    command.arguments.push_back(std::move(word));
  return command;
}

// One after the other, so that building models does not cost their memory all at once.
StepContenders start(const StepOptions& options, bool fused) {
  Names names = contenders_of(options);
  std::vector<RankCommand> commands;
  for (const StepContenderName& name : names) commands.push_back(command_of(name, options, fused));
  StepContenders contenders;
  for (std::size_t i = 0; i < names.size(); ++i) {
    contenders.push_back(std::make_unique<StepContender>(names[i], commands[i]));
    contenders.back()->wait_until_ready(fused);
  }
  return contenders;
}

void run_rounds(StepContenders& contenders, const StepOptions& options) {
  for (auto& contender : contenders) {
    contender->take_turn(1);  // the first one after the others' start is not like the rest
    contender->forget();
  }
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round)
    for (std::size_t i = 0; i < contenders.size(); ++i)
      contenders[(i + round) % contenders.size()]->take_turn(options.steps);
}

void compare_modes(const StepOptions& options) {
  for (const std::string& optimizer : options.optimizers) {
    StepContenders contenders = start(options, optimizer == "fused");
    run_rounds(contenders, options);
    options.json ? print_json(options, optimizer, contenders)
                 : print_table(options, optimizer, contenders);
  }
}

}  // namespace

void compare_steps(const StepOptions& options) {
  bool named = !options.modes.empty() || !options.against.empty();
  auto wanted = [&](const char* part) {
    if (options.parts.empty()) return !named || std::string_view(part) == "modes";
    return std::ranges::find(options.parts, part) != options.parts.end();
  };
  bool has_gpt = wanted("trigger") || (wanted("modes") && options.model == "gpt");
  if (has_gpt && size_of(options, "gpt").width % gpt_heads != 0)
    throw UsageError(formatted("--size: expected a width for the {} heads of gpt, found {}",
                               gpt_heads, size_of(options, "gpt").width));
  if (wanted("modes")) compare_modes(options);
  if (wanted("tail")) compare_tails(options);
  if (wanted("trigger")) measure_trigger(options);
}

}  // namespace lockstep::apps
