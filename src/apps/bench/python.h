// The Python that runs what bench/peers/ holds.
#pragma once

#include <string>

namespace lockstep::apps {

// `given`, or when that is empty LOCKSTEP_PYTHON, or the source tree's .venv/bin/python. BadInput
// when no file is there; whether it has torch shows when it runs.
[[nodiscard]] std::string find_python(const std::string& given);

// A file of bench/peers/ in the source tree.
[[nodiscard]] std::string peer_file(const std::string& name);

}  // namespace lockstep::apps
