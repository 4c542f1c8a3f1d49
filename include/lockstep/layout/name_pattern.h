// Patterns of names: which parameters and modules of a model are meant. Pure text, any thread.
//
//   blocks.*            the modules blocks.0, blocks.1, ...; not blocks.0.fc
//   blocks.*.weight     weight of each of them
//
// A pattern is compared part by part between dots; '*' stands for any letters of one part.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

// Whether `pattern` names `path`.
[[nodiscard]] bool names_path(std::string_view pattern, std::string_view path);

// Whether `pattern` names the tensor `name`, or a module around it.
[[nodiscard]] bool names_around(std::string_view pattern, std::string_view name);

// InvalidArgument for the first pattern that names none of these tensors and no module around one:
// it says what was probably meant. `kind`: of pattern, for the message.
void check_patterns(std::string_view kind, std::span<const std::string> patterns,
                    std::span<const std::string> names);

// "a.b.c": a.b.c, a.b, a: a tensor and the modules around it, the deepest first.
[[nodiscard]] std::vector<std::string_view> paths_of(std::string_view name);

}  // namespace lockstep::layout

#pragma GCC visibility pop
