#include <lockstep/train/settings.h>

#include "base/check.h"
#include "base/nearest.h"

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

[[noreturn]] void bad_value(const Setting& setting, std::string_view expected,
                            std::string_view found) {
  throw BadInput(formatted("{}: expected {}, found '{}'", setting.name, expected, found));
}

bool is_within(const Setting& setting, double value) {
  return value >= setting.least && value <= setting.most;
}

template <class Number>
Number parse_value(const Setting& setting, std::string_view text, std::string_view expected) {
  Number value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) bad_value(setting, expected, text);
  if (!is_within(setting, static_cast<double>(value)))
    bad_value(setting,
              setting.most < unbounded
                  ? formatted("{} from {} to {}", expected, setting.least, setting.most)
                  : formatted("{} of at least {}", expected, setting.least),
              text);
  return value;
}

struct Setter {
  const Setting& setting;
  std::string_view text;

  void operator()(std::string* variable) const { *variable = text; }
  void operator()(const WrittenValue& variable) const {
    try {
      variable.set(text);
    } catch (const BadInput& error) {
      throw BadInput(formatted("{}: {}", setting.name, error.what()));
    }
  }
  void operator()(double* variable) const {
    *variable = parse_value<double>(setting, text, "a number");
  }
  void operator()(std::int64_t* variable) const {
    *variable = parse_value<std::int64_t>(setting, text, "a whole number");
  }
  void operator()(int* variable) const {
    using Limits = std::numeric_limits<int>;
    Setting narrow = setting;
    narrow.least = std::max(setting.least, static_cast<double>(Limits::min()));
    narrow.most = std::min(setting.most, static_cast<double>(Limits::max()));
    *variable = static_cast<int>(parse_value<std::int64_t>(narrow, text, "a whole number"));
  }
};

// "--shard full", "--elastic", "no --mesh".
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

// The values of a setting besides its default: " optimizer, gradients or full", " N".
std::string any_other_value(const Settings::Entry& entry) {
  if (entry.is_flag()) return {};
  std::vector<std::string> others;
  for (const std::string& word : entry.words())
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
    throw BadInput(
        formatted("{} and {}: expected one of the two", given_text(entry), given_text(other)));
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

void Settings::add_entry(Entry entry) {
  check(!entry.name.empty() && entry.name.find_first_not_of(name_letters) == std::string::npos,
        "Settings: expected a name of small letters, digits and dashes, found '{}'", entry.name);
  check(std::ranges::find(entries_, entry.name, &Setting::name) == entries_.end(),
        "Settings: '{}' is there already; the trainer's own names are in train/options.h",
        entry.name);
  if (entry.group.empty()) entry.group = group_;
  entry.standard = text_of(entry);
  entries_.push_back(std::move(entry));
}

void Settings::add_elsewhere(const std::string& name, const std::string& other) {
  elsewhere_[name].push_back(other);
}

const Settings::Entry& Settings::entry(std::string_view name) const {
  auto found = std::ranges::find(entries_, name, &Setting::name);
  if (found != entries_.end()) return *found;
  if (auto others = elsewhere_.find(name); others != elsewhere_.end())
    throw BadInput(formatted("{} is an option of {}, not of {}", name,
                             listed(others->second, " and "), owner_));
  std::vector<std::string_view> names;
  for (const Entry& known : entries_) names.push_back(known.name);
  throw BadInput(unknown_name("option", name, names));
}

void Settings::set(std::string_view name, std::string_view text) {
  const Entry& chosen = entry(name);
  std::visit(Setter{chosen, text}, chosen.variable);
  if (chosen.changed) chosen.changed();
}

bool Settings::Entry::is_flag() const {
  constexpr std::array<std::string_view, 2> flag{"false", "true"};
  return std::ranges::equal(words(), flag);
}

bool Settings::Entry::is_text() const {
  return std::holds_alternative<std::string*>(variable) ||
         (std::holds_alternative<WrittenValue>(variable) && !is_flag());
}

std::span<const std::string> Settings::Entry::words() const {
  const auto* written = std::get_if<WrittenValue>(&variable);
  return written == nullptr ? std::span<const std::string>() : written->words;
}

std::string_view Settings::Entry::value_in_help() const {
  if (!value_name.empty()) return value_name;
  if (is_flag()) return "";
  if (!words().empty()) return "WORD";
  return is_text() ? "PATH" : "N";
}

std::string Settings::text_of(const Entry& entry) {
  return std::visit(
      [&](const auto& variable) -> std::string {
        if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(variable)>>) {
          return formatted("{}", *variable);
        } else {
          try {
            return variable.text();
          } catch (const InvalidArgument& error) {
            throw InvalidArgument(formatted("{}: {}", entry.name, error.what()));
          }
        }
      },
      entry.variable);
}

bool Settings::is_given(const Entry& entry) {
  return std::visit(
      [&](const auto& variable) {
        if constexpr (requires { is_within(entry, static_cast<double>(*variable)); })
          return is_within(entry, static_cast<double>(*variable));
        else
          return true;
      },
      entry.variable);
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
