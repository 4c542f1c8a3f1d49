#include "train/configuration.h"

#include "base/check.h"
#include "base/utf8.h"
#include "base/visible.h"
#include "train/option_settings.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace lockstep::train {
namespace {

// Of command lines, config.toml and the metadata of model files.
constexpr std::array<std::string_view, 9> reserved{
    "config",           "help",     "version",     "task", "format", "step",
    "data_fingerprint", "val_loss", "eval_batches"};

std::string full_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  std::filesystem::path full = std::filesystem::absolute(path, error);
  return error ? path : full.lexically_normal().string();
}

}  // namespace

Configuration::Configuration(Task& task, Options given)
    : options(std::move(given)), task_(task), settings_(task.name()) {
  settings_.begin_group("Model and data");
  task_.declare(settings_);
  for (const Settings::Entry& entry : settings_.entries()) {
    check(!std::ranges::count(reserved, entry.name),
          "Task::declare: '{}' is a name of the trainer's", entry.name);
    if (entry.is_path) own_paths_.push_back(entry.name);
  }
  declare_options(settings_, options, task_);
}

std::string Configuration::kept_text(const Settings::Entry& entry) {
  std::string text = Settings::text_of(entry);
  return entry.is_path ? full_path(text) : text;
}

checkpoint::Metadata Configuration::kept() const {
  checkpoint::Metadata texts{{"task", task_name()}};
  for (const Settings::Entry& entry : settings_.entries())
    if (entry.scope != Scope::start) texts[entry.name] = kept_text(entry);
  return texts;
}

void Configuration::check_texts() const {
  for (const auto& [name, text] : kept())
    check_input(is_utf8(text),
                "--{}: expected UTF-8, because config.toml and checkpoints keep it, found '{}'{}",
                name, visible(text), place_of(name));
}

void Configuration::check_description() const {
  for (const auto& [name, text] : task_.description())
    check(is_utf8(name) && is_utf8(text),
          "Task::description: expected UTF-8, because checkpoints keep it, found {} '{}'",
          visible(name), visible(text));
}

std::string Configuration::place_of(const std::string& name) const {
  auto place = options.places.find(name);
  return place == options.places.end() ? std::string()
                                       : formatted(" ({} is set in {})", name, place->second);
}

std::string Configuration::data_text() const {
  std::string text;
  for (const std::string& name : own_paths_)
    if (std::string path = settings_.text(name); !path.empty())
      text += formatted("{}{}", text.empty() ? "" : ", ", path);
  return text.empty() ? "the task's data" : text;
}

std::string Configuration::place_of_data() const {
  for (const std::string& name : own_paths_)
    if (options.places.contains(name)) return place_of(name);
  return {};
}

}  // namespace lockstep::train
