#include "apps/bench/goal.h"

#include <lockstep/base/format.h>

namespace lockstep::apps {
namespace {

const char* word_of(bool holds) { return holds ? "met" : "missed"; }

}  // namespace

std::string verdict_of(const Goal& goal, double found) {
  std::string text =
      formatted("{} {:g}: {}", goal.at_least ? ">=" : "<=", goal.must, word_of(goal.met(found)));
  if (goal.aim) text += formatted("; aim {:g}: {}", *goal.aim, word_of(goal.reached(found)));
  return text;
}

}  // namespace lockstep::apps
