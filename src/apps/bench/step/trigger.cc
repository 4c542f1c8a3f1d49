#include "apps/bench/step/trigger.h"

#include "apps/bench/goal.h"
#include "apps/bench/rank_processes.h"

#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr Goal trigger_goal{.must = 2, .aim = 0.5, .at_least = false};  // percent

TriggerCost cost_of(const nlohmann::json& answer) {
  return {.views = answer.at("views"),
          .uses = answer.at("uses"),
          .seconds_a_view = answer.at("seconds_a_view"),
          .seconds_a_use = answer.at("seconds_a_use"),
          .step_seconds = answer.at("p50_s")};
}

void print_json(const ModelSize& size, const nlohmann::json& answer, const TriggerCost& cost) {
  nlohmann::ordered_json row{{"bench", "step"},
                             {"system", "lockstep"},
                             {"model", "gpt"},
                             {"mode", "trigger"},
                             {"ranks", 1},
                             {"min_s", answer.at("min_s")},
                             {"p50_s", answer.at("p50_s")},
                             {"bytes", 0},
                             {"views", cost.views},
                             {"uses", cost.uses},
                             {"seconds_a_view", cost.seconds_a_view},
                             {"seconds_a_use", cost.seconds_a_use},
                             {"share", cost.share()},
                             {"trigger", answer.at("trigger")},
                             {"width", size.width},
                             {"depth", size.depth}};
  print_to(stdout, "{}\n", row.dump());
}

void print_table(const ModelSize& size, const nlohmann::json& answer, const TriggerCost& cost) {
  print_to(
      stdout,
      "trigger ({}): gpt {}x{}, level full: {} views of {:.0f} ns and {} uses of {:.0f} ns a step "
      "of {:.3f} s\n",
      answer.at("trigger").get<std::string>(), size.width, size.depth, cost.views,
      cost.seconds_a_view * 1e9, cost.uses, cost.seconds_a_use * 1e9, cost.step_seconds);
  print_to(stdout, "{:<46}{:>8.4f}   {}\n\n", "share of the step, %", cost.share() * 100,
           size == usual_size("gpt") ? verdict_of(trigger_goal, cost.share() * 100) : "");
  std::fflush(stdout);
}

}  // namespace

void measure_trigger(const StepOptions& options) {
  ModelSize size = size_of(options, "gpt");
  std::vector<std::string> words = rank_words(size);
  words.insert(words.begin(), {"trigger-rank", "--threads", std::to_string(options.threads)});
  RankProcesses process =
      RankProcesses::start_each({.name = "lockstep",
                                 .program = std::filesystem::read_symlink("/proc/self/exe"),
                                 .arguments = std::move(words),
                                 .ranks = 1,
                                 .threads = options.threads});
  (void)process.answer(0);  // ready
  process.tell(std::to_string(options.steps));
  auto answer = nlohmann::json::parse(process.answer(0));
  TriggerCost cost = cost_of(answer);
  options.json ? print_json(size, answer, cost) : print_table(size, answer, cost);
}

}  // namespace lockstep::apps
