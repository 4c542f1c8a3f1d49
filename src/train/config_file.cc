#include <lockstep/train/config_file.h>

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

void apply_entry(Options& options, const ConfigEntry& entry) {
  const OptionRow& row = option_row(entry.name, options.task);
  bool wants_text = std::holds_alternative<std::string Options::*>(row.member);
  if (wants_text != entry.is_text)
    throw BadInput(formatted("{}: expected {}, found {}", row.name,
                             wants_text ? "a text in quotes" : "a value without quotes",
                             entry.text));
  set_option(options, row, entry.text);
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

void apply_config(Options& options, const std::vector<ConfigEntry>& entries) {
  auto has = [&](std::string_view name) {
    return std::ranges::find(entries, name, &ConfigEntry::name) != entries.end();
  };
  if (has("steps") && has("epochs"))
    throw BadInput(formatted("{}: give steps or epochs, not both", entries[0].place));
  for (const ConfigEntry& entry : entries) {
    if (entry.name == "task") {
      if (entry.text == options.task) continue;
      throw BadInput(formatted("{}: the file is for task '{}', the command says '{}'", entry.place,
                               entry.text, options.task));
    }
    try {
      apply_entry(options, entry);
    } catch (const BadInput& error) {
      throw BadInput(formatted("{}: {}", entry.place, visible(error.what(), 1000)));
    }
  }
}

void write_config(const std::filesystem::path& path, const Options& options) {
  std::ostringstream text;
  text << "task = " << toml::value<std::string>(options.task) << "\n";
  for (const OptionRow& row : option_rows()) {
    bool is_unset_length = (row.name == "steps" && options.steps == 0) ||
                           (row.name == "epochs" && options.epochs == 0);
    if (!row.is_for(options.task) || !row.kept || is_unset_length) continue;
    std::string value = option_text(options, row);
    text << row.name << " = ";
    if (std::holds_alternative<std::string Options::*>(row.member))
      text << toml::value<std::string>(value) << "\n";
    else
      text << value << "\n";
  }
  sys::AtomicFile::write(path, text.str());
}

}  // namespace lockstep::train
