#include "train/config_file.h"

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"
#include "sys/files.h"
#include "sys/plain_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

namespace lockstep::train {
namespace {

std::string text_of(const toml::node& node, std::string_view place, std::string_view name) {
  if (auto text = node.value_exact<std::string>()) return *text;
  if (auto number = node.value_exact<std::int64_t>()) return formatted("{}", *number);
  if (auto number = node.value_exact<double>()) return formatted("{}", *number);
  if (auto flag = node.value_exact<bool>()) return formatted("{}", *flag);
  throw BadInput(
      formatted("{}: {}: expected a text, a number, true or false", place, visible(name)));
}

void apply_entry(Configuration& configuration, const ConfigEntry& entry) {
  const Settings::Entry& setting = configuration.settings().entry(entry.name);
  bool wants_text = std::holds_alternative<std::string*>(setting.variable);
  check_input(wants_text == entry.is_text, "{}: expected {}, found {}", entry.name,
              wants_text ? "a text in quotes" : "a value without quotes", entry.text);
  configuration.settings().set(entry.name, entry.text);
  configuration.options.places[entry.name] = entry.place;
}

toml::table parse_file(const std::filesystem::path& path) {
  constexpr std::uint64_t most_bytes = 1 << 20;
  try {
    return toml::parse(sys::read_plain_file(path, most_bytes), path.string());
  } catch (const SystemError& error) {
    throw BadInput(error.what());
  } catch (const toml::parse_error& error) {
    auto line = error.source().begin.line;
    std::string what = visible(error.description(), 1000);
    throw BadInput(line > 0 ? formatted("{} line {}: {}", path.string(), line, what)
                            : formatted("{}: {}", path.string(), what));
  }
}

}  // namespace

std::vector<ConfigEntry> read_config(const std::filesystem::path& path) {
  std::vector<std::pair<toml::source_index, ConfigEntry>> found;
  for (const auto& [key, node] : parse_file(path)) {
    auto line = node.source().begin.line;
    std::string place = formatted("{} line {}", path.string(), line);
    std::string name(key.str());
    found.push_back({line, {name, text_of(node, place, name), place, node.is_string()}});
  }
  std::ranges::stable_sort(found, {}, [](const auto& item) { return item.first; });
  check_input(!found.empty(), "{}: expected options such as 'steps = 100', found none",
              path.string());
  std::vector<ConfigEntry> entries;
  for (auto& item : found) entries.push_back(std::move(item.second));
  return entries;
}

void apply_config(Configuration& configuration, const std::vector<ConfigEntry>& entries) {
  auto has = [&](std::string_view name) {
    return std::ranges::find(entries, name, &ConfigEntry::name) != entries.end();
  };
  if (has("steps") && has("epochs"))
    throw BadInput(formatted("{}: give steps or epochs, not both", entries[0].place));
  for (const ConfigEntry& entry : entries) {
    if (entry.name == "task") {
      check_input(entry.text == configuration.task_name(),
                  "{}: the file is for task '{}', the command says '{}'", entry.place,
                  visible(entry.text), configuration.task_name());
      continue;
    }
    try {
      apply_entry(configuration, entry);
    } catch (const BadInput& error) {
      throw BadInput(formatted("{}: {}", entry.place, visible(error.what(), 1000)));
    }
  }
}

void write_config(const std::filesystem::path& path, const Configuration& configuration) {
  std::ostringstream text;
  text << "task = " << toml::value<std::string>(configuration.task_name()) << "\n";
  for (const Settings::Entry& entry : configuration.settings().entries()) {
    if (entry.scope == Scope::start || !Settings::is_given(entry)) continue;
    std::string value = Configuration::kept_text(entry);
    text << entry.name << " = ";
    if (std::holds_alternative<std::string*>(entry.variable))
      text << toml::value<std::string>(value) << "\n";
    else
      text << value << "\n";
  }
  sys::AtomicFile::write(path, text.str());
}

}  // namespace lockstep::train
