// Options for each way in which ranks of --strategy ddp communicate.
#pragma once

#include "train/strategies.h"

#include <lockstep/train/options.h>

#include <functional>
#include <ostream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

using Change = std::function<void(Options&)>;

struct Way {
  std::string name;
  Change change;
};

inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

inline Way hook(const std::string& text, std::int64_t start = 0) {
  std::string name = text + (start > 0 ? "_from_" + std::to_string(start) : "");
  return {std::regex_replace(name, std::regex("[:+]"), "_"), [=](Options& options) {
            options.hook = parse_hook(text);
            options.hook.power_sgd.start_step = start;
          }};
}

inline std::vector<Way> hooks() {
  return {hook("bf16"), hook("fp16"), hook("powersgd:2"), hook("powersgd:1", 3),
          hook("bf16+powersgd:2")};
}

inline std::vector<Way> copies() {
  return {{"local_sgd", [](Options& options) { options.local_sgd.period = 3; }},
          {"post_local_sgd",
           [](Options& options) {
             options.local_sgd.period = 2;
             options.post_local_sgd.start_step = 3;
           }},
          {"diloco", [](Options& options) { options.diloco.inner_steps = 3; }},
          {"diloco_int8_in_fragments", [](Options& options) {
             options.diloco = {.inner_steps = 4,
                               .pseudo_gradients = PseudoGradients::int8,
                               .fragments = 2,
                               .overlap_steps = 1,
                               .mixing = 0.5};
           }}};
}

inline std::vector<Way> all_ways() {
  std::vector<Way> ways = hooks();
  for (Way& way : copies()) ways.push_back(std::move(way));
  return ways;
}

}  // namespace lockstep::train
