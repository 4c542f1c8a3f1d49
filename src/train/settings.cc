#include <lockstep/train/settings.h>

#include "base/check.h"
#include "base/nearest.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

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

  void operator()(std::string* variable) const {
    std::vector<std::string_view> words(setting.choices.begin(), setting.choices.end());
    if (!words.empty() && std::ranges::find(words, text) == words.end())
      throw BadInput(formatted("{}: {}", setting.name, unknown_name("value", text, words)));
    *variable = text;
  }
  void operator()(std::int64_t* variable) const {
    *variable = parse_value<std::int64_t>(setting, text, "a whole number");
  }
  void operator()(double* variable) const {
    *variable = parse_value<double>(setting, text, "a number");
  }
  void operator()(bool* variable) const {
    if (text != "true" && text != "false") bad_value(setting, "true or false", text);
    *variable = text == "true";
  }
};

}  // namespace

void Settings::add_entry(Entry entry) {
  check(!entry.name.empty() && entry.name.find_first_not_of(name_letters) == std::string::npos,
        "Settings: expected a name of small letters, digits and dashes, found '{}'", entry.name);
  check(std::ranges::find(entries_, entry.name, &Setting::name) == entries_.end(),
        "Settings: '{}' is there already; the trainer's own names are in train/options.h",
        entry.name);
  if (entry.group.empty()) entry.group = group_;
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

std::string Settings::text_of(const Entry& entry) {
  return std::visit([](auto* variable) { return formatted("{}", *variable); }, entry.variable);
}

bool Settings::is_given(const Entry& entry) {
  if (auto* const* whole = std::get_if<std::int64_t*>(&entry.variable))
    return is_within(entry, static_cast<double>(**whole));
  if (auto* const* number = std::get_if<double*>(&entry.variable))
    return is_within(entry, **number);
  return true;
}

}  // namespace lockstep::train
