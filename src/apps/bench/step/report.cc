#include "apps/bench/step/report.h"

#include "apps/bench/spread.h"
#include "apps/bench/step/ratios.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace lockstep::apps {
namespace {

const StepContender* find(const StepContenders& contenders, std::string_view system,
                          std::string_view mode) {
  auto found = std::ranges::find_if(contenders, [&](const auto& contender) {
    return contender->name().system == system && contender->name().mode == mode;
  });
  return found == contenders.end() ? nullptr : found->get();
}

const char* words_of(const std::string& optimizer) {
  return optimizer == "fused"
             ? "fused: torch.optim.AdamW(fused=True) beside lockstep::optim::AdamW"
             : "default: torch.optim.AdamW, its defaults, beside torch::optim::AdamW";
}

void print_line(const StepContender& contender) {
  Spread seconds = spread_of(contender.seconds());
  print_to(stdout, "{:<26}", title_of(contender.name()));
  for (double value : {seconds.min, seconds.p25, seconds.p50, seconds.p75, seconds.max})
    print_to(stdout, "{:>10.4f}", value);
  print_to(stdout, "{:>12}   {}\n", format_bytes(contender.bytes()),
           listed(std::vector(contender.losses().begin(),
                              contender.losses().begin() +
                                  std::min<std::ptrdiff_t>(2, std::ssize(contender.losses()))),
                  " ", "{:.6f}"));
}

void print_ratio(const StepRatio& ratio, const StepContender& numerator,
                 const StepContender& denominator) {
  Spread found = quotients_of(numerator.by_round(), denominator.by_round());
  print_to(stdout, "{:<46}{:>8.3f}   {:.3f} .. {:.3f}   {}\n",
           formatted("{} / {}", title_of(numerator.name()), title_of(denominator.name())),
           found.p50, found.p25, found.p75, ratio.goal ? verdict_of(*ratio.goal, found.p50) : "");
}

// Goals are for the usual sizes.
std::vector<StepRatio> ratios_of(const StepOptions& options, const ModelSize& size) {
  std::vector<StepRatio> ratios = step_ratios(options.model, options.ranks);
  if (size != usual_size(options.model))
    for (StepRatio& ratio : ratios) ratio.goal.reset();
  return ratios;
}

}  // namespace

void print_table(const StepOptions& options, const std::string& optimizer,
                 const StepContenders& contenders) {
  ModelSize size = size_of(options, options.model);
  print_to(stdout, "step: model={} {}x{} ranks={} threads={} rounds={} of {} steps each\n",
           options.model, size.width, size.depth, options.ranks, options.threads, options.rounds,
           options.steps);
  print_to(stdout, "AdamW, {}\n", words_of(optimizer));
  print_to(stdout, "{:<26}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}   first losses\n", "seconds", "min",
           "p25", "p50", "p75", "max", "bytes");
  for (const auto& contender : contenders) print_line(*contender);
  print_to(stdout, "\n{:<46}{:>8}   quartiles of the rounds\n", "time / time", "p50");
  for (const StepRatio& ratio : ratios_of(options, size)) {
    const StepContender* numerator = find(contenders, ratio.numerator_system, ratio.numerator_mode);
    const StepContender* denominator =
        find(contenders, ratio.denominator_system, ratio.denominator_mode);
    if (numerator != nullptr && denominator != nullptr)
      print_ratio(ratio, *numerator, *denominator);
  }
  print_to(stdout, "\n");
  std::fflush(stdout);
}

void print_json(const StepOptions& options, const std::string& optimizer,
                const StepContenders& contenders) {
  ModelSize size = size_of(options, options.model);
  for (const auto& contender : contenders) {
    Spread seconds = spread_of(contender->seconds());
    nlohmann::ordered_json row{{"bench", "step"},
                               {"system", contender->name().system},
                               {"model", options.model},
                               {"mode", contender->name().mode},
                               {"ranks", options.ranks},
                               {"min_s", seconds.min},
                               {"p50_s", seconds.p50},
                               {"bytes", contender->bytes()},
                               {"p25_s", seconds.p25},
                               {"p75_s", seconds.p75},
                               {"max_s", seconds.max},
                               {"optimizer", optimizer},
                               {"threads", options.threads},
                               {"rounds", options.rounds},
                               {"steps", contender->seconds().size()},
                               {"round_means_s", contender->by_round()},
                               {"losses", contender->losses()},
                               {"width", size.width},
                               {"depth", size.depth}};
    print_to(stdout, "{}\n", row.dump());
  }
  std::fflush(stdout);
}

}  // namespace lockstep::apps
