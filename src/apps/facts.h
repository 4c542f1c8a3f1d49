// Facts for people and for programs: sections of named values in a fixed order.
#pragma once

#include <nlohmann/json.hpp>

namespace lockstep::apps {

// Values are text, numbers, booleans, lists of text, or null if they could not be determined. Names
// that end in "_bytes" are numbers of bytes.
using Facts = nlohmann::ordered_json;

[[nodiscard]] Facts build_facts();
[[nodiscard]] Facts machine_facts();

}  // namespace lockstep::apps
