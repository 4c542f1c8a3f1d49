#include "base/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

namespace lockstep {

std::string formatted_from(std::string_view pattern, std::span<const FormatArgument> arguments) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const FormatArgument& argument : arguments) {
    std::visit([&store](const auto& value) { store.push_back(value); }, argument.value());
  }
  return fmt::vformat(pattern, store);
}

}  // namespace lockstep
