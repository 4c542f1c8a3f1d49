// How measured steps are printed: a table for people, or one JSON object a contender.
#pragma once

#include "apps/bench/step/contender.h"
#include "apps/bench/step/options.h"

#include <memory>
#include <string>
#include <vector>

namespace lockstep::apps {

using StepContenders = std::vector<std::unique_ptr<StepContender>>;

void print_table(const StepOptions& options, const std::string& optimizer,
                 const StepContenders& contenders);
void print_json(const StepOptions& options, const std::string& optimizer,
                const StepContenders& contenders);

}  // namespace lockstep::apps
