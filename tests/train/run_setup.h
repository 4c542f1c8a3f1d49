// A run of a known task as a value that tests can change and copy: the trainer's options, plus the
// task's own settings by name.
#pragma once

#include "base/format.h"
#include "train/configuration.h"
#include "train/option_table.h"
#include "train/strategies.h"
#include "train/tasks/known.h"

#include <lockstep/train/trainer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::train {

struct RunSetup : Options {
  explicit RunSetup(std::string task = "gpt")
      : Options(make_task(task)->defaults()), task(std::move(task)) {}

  std::string task;
  // The task's settings of these names, unless empty.
  std::string data, vocabulary, bpe, token_dtype;
  std::optional<std::int64_t> layers, heads, width, block, vocabulary_size;
  std::optional<double> dropout, capacity, balance;

  // Returns the task with its settings.
  [[nodiscard]] std::unique_ptr<Task> make() const {
    std::unique_ptr<Task> made = make_task(task);
    settle(*made);
    return made;
  }

  // Applies the settings to a task of that kind.
  void settle(Task& made) const {
    Settings settings(task);
    made.declare(settings);
    for (const auto& [name, value] : {std::pair("data", data), std::pair("vocabulary", vocabulary),
                                      std::pair("bpe", bpe), std::pair("token-dtype", token_dtype)})
      if (!value.empty()) settings.set(name, value);
    for (const auto& [name, value] :
         {std::pair("layers", layers), std::pair("heads", heads), std::pair("width", width),
          std::pair("block", block), std::pair("vocabulary-size", vocabulary_size)})
      if (value) settings.set(name, formatted("{}", *value));
    for (const auto& [name, value] :
         {std::pair("dropout", dropout), std::pair("capacity", capacity),
          std::pair("balance", balance)})
      if (value) settings.set(name, formatted("{}", *value));
  }
};

// Sets one of the trainer's options as a command line does.
inline void set_option(Options& options, const std::string& name, const std::string& text) {
  const std::unique_ptr<Task> task = make_task("gpt");
  Settings settings;
  declare_options(settings, options, *task);
  settings.set(name, text);
}

// Trains with a new task object for every run.
inline Report train(const RunSetup& setup, Group group) {
  return train(*setup.make(), setup, std::move(group));
}

// Returns one of the task's own settings as text.
inline std::string setting_of(Task& task, const std::string& name) {
  Settings settings(task.name());
  task.declare(settings);
  return settings.text(name);
}

// A configuration together with the task that it refers to.
struct Configured {
  explicit Configured(const RunSetup& setup) : task(setup.make()), all(*task, setup) {}
  std::unique_ptr<Task> task;
  Configuration all;
};

inline void check_run(const RunSetup& setup, int ranks) {
  Configured configured(setup);
  check_run(configured.all, ranks);
}

}  // namespace lockstep::train
