// Name patterns that select parameters and modules of a model. Pure text functions, thread-safe.
//
//   blocks.*            the modules blocks.0, blocks.1, ...; not blocks.0.fc
//   blocks.*.weight     weight of each of them
//
// A pattern is matched component by component (separated by dots); '*' matches any characters of
// one component.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

// Returns true if `pattern` matches `path`.
[[nodiscard]] bool names_path(std::string_view pattern, std::string_view path);

// Returns true if `pattern` matches the tensor `name` or a module around it.
[[nodiscard]] bool names_around(std::string_view pattern, std::string_view name);

// Throws InvalidArgument for the first pattern that matches neither one of these tensors nor a
// module that contains one; the message suggests a likely name. `kind` is the kind of pattern, for
// the message.
void check_patterns(std::string_view kind, std::span<const std::string> patterns,
                    std::span<const std::string> names);

// Returns the name and the names of the modules around it, innermost first: for "a.b.c", returns
// a.b.c, a.b, a.
[[nodiscard]] std::vector<std::string_view> paths_of(std::string_view name);

}  // namespace lockstep::layout

#pragma GCC visibility pop
