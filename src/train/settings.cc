#include <lockstep/train/settings.h>

#include "base/check.h"
#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

constexpr double unbounded = 1e15;
constexpr std::string_view name_letters = "abcdefghijklmnopqrstuvwxyz0123456789-";

bool is_within(const Setting& setting, double value) {
  return value >= setting.least && value <= setting.most;
}

template <class Number>
Number parsed(const Setting& bounds, std::string_view text) {
  std::string expected = std::is_same_v<Number, double> ? "a number" : "an integer";
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = end == text.data() + text.size() && error != std::errc::invalid_argument;
  const bool is_readable = is_number && error == std::errc{};
  const auto number = static_cast<double>(value);
  if (is_readable && is_within(bounds, number)) return value;
  if (is_number) {
    const bool names_most = bounds.most < unbounded || !is_readable || number > bounds.most;
    expected += names_most ? formatted(" from {} to {}", bounds.least, bounds.most)
                           : formatted(" of at least {}", bounds.least);
  }
  throw BadInput(formatted("expected {}, found '{}'", expected, text));
}

// Reads the text of an int as a larger number and then checks the bounds of int.
template <class Number, class Parsed = Number>
WrittenValue number_in(const Setting& bounds, Number& variable) {
  return {
      .text = [&variable] { return formatted("{}", variable); },
      .set =
          [bounds, &variable](std::string_view text) {
            variable = static_cast<Number>(parsed<Parsed>(bounds, text));
          },
      .is_number = true,
      .is_given = [bounds, &variable] { return is_within(bounds, static_cast<double>(variable)); }};
}

// Returns "--shard full", "--elastic", "no --mesh".
std::string given_text(const Settings::Entry& entry) {
  const std::string text = Settings::text_of(entry);
  if (entry.is_flag()) return formatted("{}--{}", text == "true" ? "" : "no ", entry.name);
  if (text.empty()) return "no --" + entry.name;
  return formatted("--{} {}", entry.name, text);
}

bool is_standard(const Settings::Entry& entry) {
  return Settings::text_of(entry) == entry.standard;
}

std::vector<std::string_view> split(std::string_view text, auto is_separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::ranges::find_if(text, is_separator);
    parts.emplace_back(text.begin(), end);
    text = std::string_view(end == text.end() ? end : end + 1, text.end());
  }
  return parts;
}

bool has_word(std::string_view text, std::string_view wanted) {
  const std::string_view word = wanted.substr(0, wanted.find_first_of("=:"));
  const auto is_separator = [](char letter) {
    return name_letters.find(letter) == name_letters.npos;
  };
  const std::vector<std::string_view> words = split(text, is_separator);
  return std::ranges::find(words, word) != words.end();
}

// Returns the values of a setting other than its default: " optimizer, gradients or full", " N".
std::string any_other_value(const Settings::Entry& entry) {
  if (entry.is_flag()) return {};
  std::vector<std::string> others;
  for (const std::string& word : entry.variable.words)
    if (word != entry.standard) others.push_back(word);
  if (others.empty()) return formatted(" {}", entry.value_in_help());
  const std::string last = others.back();
  others.pop_back();
  return others.empty() ? " " + last : formatted(" {} or {}", listed(others, ", "), last);
}

void check_need(const Settings& settings, const Settings::Entry& entry, std::string_view need) {
  constexpr std::string_view excluded = "no ";
  if (need.starts_with(excluded)) {
    const Settings::Entry& other = settings.entry(need.substr(excluded.size()));
    if (is_standard(other)) return;
    throw BadInput(formatted("give {} or {}, not both", given_text(entry), given_text(other)));
  }
  const std::vector<std::string_view> parts =
      split(need, [](char letter) { return letter == ' '; });
  const Settings::Entry& other = settings.entry(parts.front());
  const std::string text = Settings::text_of(other);
  std::vector<std::string_view> wanted;
  if (parts.size() > 1) wanted = split(parts[1], [](char letter) { return letter == '|'; });
  if (wanted.empty() ? !is_standard(other)
                     : std::ranges::any_of(wanted, [&](auto word) { return has_word(text, word); }))
    return;
  throw BadInput(
      formatted("{} needs --{}{}{}", given_text(entry), other.name,
                wanted.empty() ? any_other_value(other) : " " + std::string(listed(wanted, " or ")),
                other.is_text() ? ", found " + given_text(other) : ""));
}

}  // namespace

void Settings::add(Setting setting, WrittenValue variable) {
  check(!setting.name.empty() && setting.name.find_first_not_of(name_letters) == std::string::npos,
        "Settings: expected a name of small letters, digits and dashes, found '{}'", setting.name);
  check(find(setting.name) == nullptr,
        "Settings: '{}' is there already; the trainer's own names are in train/options.h",
        setting.name);
  if (setting.group.empty()) setting.group = group_;
  Entry entry{std::move(setting), std::move(variable)};
  entry.standard = text_of(entry);
  entries_.push_back(std::move(entry));
}

void Settings::add(Setting setting, std::string& variable) {
  add(std::move(setting), {.text = [&variable] { return variable; },
                           .set = [&variable](std::string_view text) { variable = text; }});
}

void Settings::add(Setting setting, std::int64_t& variable) {
  WrittenValue number = number_in(setting, variable);
  add(std::move(setting), std::move(number));
}

void Settings::add(Setting setting, double& variable) {
  WrittenValue number = number_in(setting, variable);
  add(std::move(setting), std::move(number));
}

void Settings::add(Setting setting, int& variable) {
  using Limits = std::numeric_limits<int>;
  Setting narrow = setting;
  narrow.least = std::max(setting.least, static_cast<double>(Limits::min()));
  narrow.most = std::min(setting.most, static_cast<double>(Limits::max()));
  add(std::move(setting), number_in<int, std::int64_t>(narrow, variable));
}

void Settings::add_elsewhere(const std::string& name, const std::string& other) {
  elsewhere_[name].push_back(other);
}

const Settings::Entry* Settings::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &Setting::name);
  return found == entries_.end() ? nullptr : &*found;
}

const Settings::Entry& Settings::entry(std::string_view name) const {
  if (const Entry* found = find(name)) return *found;
  if (auto others = elsewhere_.find(name); others != elsewhere_.end())
    throw BadInput(formatted("{} is an option of {}, not of {}", name,
                             listed(others->second, " and "), owner_));
  std::vector<std::string_view> names;
  for (const Entry& known : entries_) names.push_back(known.name);
  throw BadInput(unknown_name("option", name, names));
}

void Settings::set(std::string_view name, std::string_view text) {
  const Entry& chosen = entry(name);
  try {
    chosen.variable.set(text);
  } catch (const BadInput& error) {
    throw BadInput(formatted("{}: {}", chosen.name, error.what()));
  }
  if (chosen.changed) chosen.changed();
}

bool Settings::Entry::is_flag() const {
  constexpr std::array<std::string_view, 2> flag{"false", "true"};
  return std::ranges::equal(variable.words, flag);
}

std::string_view Settings::Entry::value_in_help() const {
  if (!value_name.empty()) return value_name;
  if (is_flag()) return "";
  if (!variable.words.empty()) return "WORD";
  return is_text() ? "PATH" : "N";
}

std::string Settings::text_of(const Entry& entry) {
  try {
    return entry.variable.text();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(formatted("{}: {}", entry.name, error.what()));
  }
}

bool Settings::is_given(const Entry& entry) {
  return !entry.variable.is_given || entry.variable.is_given();
}

void Settings::check_needs() const {
  for (const Entry& entry : entries_)
    if (!is_standard(entry))
      for (const std::string& need : entry.needs) check_need(*this, entry, need);
}

namespace detail {

std::size_t place_of_word(std::span<const std::string> words, std::string_view text) {
  const auto found = std::ranges::find(words, text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  const std::vector<std::string_view> known(words.begin(), words.end());
  check_input(known != std::vector<std::string_view>{"false", "true"},
              "expected true or false, found '{}'", text);
  throw BadInput(unknown_name("value", text, known));
}

void throw_without_word(std::span<const std::string> words) {
  throw InvalidArgument(
      formatted("expected a value that one of the words {} stands for, found another one",
                listed(words, ", ")));
}

}  // namespace detail

}  // namespace lockstep::train
