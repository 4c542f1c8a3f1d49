// Facts for people and for programs: sections of named values, in an order that is kept.
#pragma once

#include <nlohmann/json.hpp>

namespace lockstep::apps {

// Values are text, numbers, true and false, lists of text, or null for what could not be found out.
// Names that end in
// "_bytes" are numbers of bytes.
using Facts = nlohmann::ordered_json;

[[nodiscard]] Facts build_facts();
[[nodiscard]] Facts machine_facts();

}  // namespace lockstep::apps
