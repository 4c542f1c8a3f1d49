// Commands that are programs of their own: `lockstep NAME` is lockstep-NAME in the folder of
// lockstep itself.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// The names for which such a program lies there, sorted.
[[nodiscard]] std::vector<std::string> sibling_names();

// Becomes lockstep-NAME with these arguments; returns only when there is none (nothing happened)
// or, with an exit code after a line on stderr, when it cannot be executed.
[[nodiscard]] int become_sibling(const std::string& name,
                                 const std::vector<std::string>& arguments);
inline constexpr int no_such_sibling = -1;

}  // namespace lockstep::apps
