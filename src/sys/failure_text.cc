#include "sys/failure_text.h"

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <new>
#include <optional>
#include <string_view>

namespace lockstep::sys {
namespace {

// Parses the size in a message of c10/core/impl/alloc_cpu.cpp: "... can't allocate memory: you
// tried to allocate 4096 bytes. ..."
std::optional<std::int64_t> bytes_refused(std::string_view text) {
  constexpr std::string_view before = "you tried to allocate ", after = " bytes";
  std::size_t begin = text.find(before);
  if (begin == std::string_view::npos) return std::nullopt;
  begin += before.size();
  return parse_integer(text.substr(begin, text.find(after, begin) - begin));
}

}  // namespace

std::string rough_size(double bytes) {
  constexpr std::array<std::string_view, 6> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1023.5 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  bool has_decimal = bytes < 99.95 && unit > 0;
  return has_decimal ? formatted("{:.1f} {}", bytes, units[unit])
                     : formatted("{:.0f} {}", bytes, units[unit]);
}

std::string free_memory_text(const MemorySize& memory) {
  return formatted("{} of {} of memory are free", rough_size(static_cast<double>(memory.available)),
                   rough_size(static_cast<double>(memory.total)));
}

std::string failure_text(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "out of memory: an allocation failed; " + free_memory_text();
  if (const auto* refused = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return formatted("{}: {}", refused->path1().string(), refused->code().message());
  std::string_view text = error.what();
  if (dynamic_cast<const Error*>(&error) != nullptr) return std::string(text);
  if (auto bytes = bytes_refused(text))
    return formatted("out of memory: an allocation of {} failed; {}",
                     rough_size(static_cast<double>(*bytes)), free_memory_text());
  return first_line(text);
}

}  // namespace lockstep::sys
