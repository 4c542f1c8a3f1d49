#include "base/text.h"

#include "base/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

namespace lockstep {
namespace {

struct Unit {
  std::string_view name;
  double size;
};

constexpr std::array<Unit, 9> byte_units{{{"B", 1},
                                          {"KiB", 1024.0},
                                          {"MiB", 1048576.0},
                                          {"GiB", 1073741824.0},
                                          {"TiB", 1099511627776.0},
                                          {"kB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12}}};
constexpr std::size_t largest_written = 4;  // TiB; decimal units are only read
constexpr std::array<Unit, 6> time_units{
    {{"h", 3600e9}, {"m", 60e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool equal_in_any_case(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

// Removes a quantity such as "12.5 MiB" from the front of `text` (digits and points, spaces,
// letters) and returns it.
std::optional<std::pair<double, std::string_view>> take_quantity(std::string_view& text) {
  double number = 0;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || number < 0 || !std::isfinite(number) || text.front() == '-' ||
      is_letter(text.front())) {
    return std::nullopt;
  }
  text.remove_prefix(end - text.data());
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::size_t letters = 0;
  while (letters < text.size() && is_letter(text[letters])) ++letters;
  std::string_view unit = text.substr(0, letters);
  text.remove_prefix(letters);
  return std::pair{number, unit};
}

std::optional<std::int64_t> to_integer(double value) {
  if (value >= 9223372036854775807.0) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(value));
}

std::string three_digits(double value) {
  int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::string text = formatted("{:.{}f}", value, decimals);
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<bool> parse_flag(std::string_view text) {
  for (auto yes : {"1", "true", "yes", "on"}) {
    if (equal_in_any_case(text, yes)) return true;
  }
  for (auto no : {"0", "false", "no", "off"}) {
    if (equal_in_any_case(text, no)) return false;
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  if (auto plain = parse_integer(text)) return *plain >= 0 ? plain : std::nullopt;
  if (text.empty()) return std::nullopt;
  auto quantity = take_quantity(text);
  if (!quantity || !text.empty()) return std::nullopt;
  for (const Unit& unit : byte_units) {
    if (equal_in_any_case(quantity->second, unit.name))
      return to_integer(quantity->first * unit.size);
  }
  return std::nullopt;
}

std::string format_bytes(std::int64_t bytes) {
  if (bytes < 0)
    return "-" +
           format_bytes(bytes == std::numeric_limits<std::int64_t>::min() ? -(bytes + 1) : -bytes);
  for (std::size_t i = largest_written; i > 0; --i) {
    auto size = static_cast<std::int64_t>(byte_units[i].size);
    if (bytes >= size && bytes % size == 0)
      return formatted("{} {}", bytes / size, byte_units[i].name);
  }
  std::size_t unit = 0;
  while (unit < largest_written && static_cast<double>(bytes) >= 1023.5 * byte_units[unit].size)
    ++unit;
  return three_digits(static_cast<double>(bytes) / byte_units[unit].size) + " " +
         std::string(byte_units[unit].name);
}

std::optional<Duration> parse_duration(std::string_view text) {
  if (text.empty()) return std::nullopt;
  double total = 0;
  bool first = true;
  while (!text.empty()) {
    auto quantity = take_quantity(text);
    if (!quantity) return std::nullopt;
    auto [number, name] = *quantity;
    if (name.empty()) {  // a single number without a unit is in seconds
      if (!first || !text.empty()) return std::nullopt;
      name = "s";
    }
    const Unit* found = nullptr;
    for (const Unit& unit : time_units) {
      if (unit.name == name) found = &unit;
    }
    if (found == nullptr) return std::nullopt;
    total += number * found->size;
    first = false;
  }
  auto count = to_integer(total);
  return count ? std::optional(Duration(*count)) : std::nullopt;
}

std::string format_duration(Duration duration) {
  if (duration == Duration::max()) return "forever";
  std::int64_t ns = duration.count();
  if (ns < 0)
    return "-" + format_duration(
                     Duration(ns == std::numeric_limits<std::int64_t>::min() ? -(ns + 1) : -ns));
  if (ns == 0) return "0s";
  for (std::size_t i = 5; i > 2; --i) {
    double value = static_cast<double>(ns) / time_units[i].size;
    if (value < 999.5) return three_digits(value) + std::string(time_units[i].name);
  }
  if (ns < 59'950'000'000) return three_digits(static_cast<double>(ns) / 1e9) + "s";
  std::int64_t seconds = (ns + 500'000'000) / 1'000'000'000;
  std::int64_t large = seconds < 3600 ? seconds / 60 : seconds / 3600;
  std::int64_t small = seconds < 3600 ? seconds % 60 : seconds % 3600 / 60;
  std::string text = formatted("{}{}", large, seconds < 3600 ? "m" : "h");
  return small == 0 ? text : text + formatted("{}{}", small, seconds < 3600 ? "s" : "m");
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return listed(parts, separator);
}

std::string rank_list(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (first > 0) text += ", ";
    text += std::to_string(ranks[first]);
    if (last > first) text += (last == first + 1 ? ", " : "-") + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the distance table: the last row but one (for swaps), the last row, and the
  // current row.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string_view> nearest(std::string_view name,
                                        std::span<const std::string_view> known) {
  std::optional<std::string_view> best;
  int best_distance = 0;
  for (std::string_view candidate : known) {
    int allowed =
        static_cast<int>(std::max<std::size_t>(1, std::max(name.size(), candidate.size()) / 3));
    int distance = edit_distance(name, candidate);
    if (distance > allowed || (best && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string unknown_name(std::string_view kind, std::string_view name,
                         std::span<const std::string_view> known) {
  if (auto meant = nearest(name, known))
    return formatted("unknown {} '{}'; did you mean '{}'?", kind, name, *meant);
  return formatted("unknown {} '{}'; known: {}", kind, name,
                   known.empty() ? "none" : listed(known, ", "));
}

}  // namespace lockstep
