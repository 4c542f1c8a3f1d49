// Settings: the named values of a run, each bound to a variable of the program. One table serves
// the command line (`--weight-decay 0.1`), TOML files (`weight-decay = 0.1`), --help, the
// config.toml that a run leaves behind, checkpoints, and the metadata of model files.
//
//   void declare(lockstep::train::Settings& settings) override {
//     settings.add({.name = "width", .help = "features between layers", .least = 1}, width_);
//   }
//
// What a variable holds when it is added is its default. Not thread-safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Which files keep a setting, and whether a resumed run may have another value.
enum class Scope {
  start,  // of one start of the program: in no file
  run,    // in config.toml and checkpoints; may change
  model,  // in model files too, whose model is made with it; may change
  shape   // the same, and may not change: the parameters' shapes or meaning follow from it
};

struct Setting {
  std::string name;                       // small letters, digits and dashes
  std::string help;                       // for --help: one line
  std::string value_name = {};            // for --help: "AXES"; empty: WORD, PATH or N by its kind
  std::vector<std::string> choices = {};  // of a text: the words that it may be; empty: any text
  double least = 0;                       // of a number: its bounds, both included
  double most = 1e15;
  // Of a text: it names a file or folder. Files keep it with the folder in front.
  bool is_path = false;
  Scope scope = Scope::run;
  std::function<void()> changed = {};      // called after a value was set
  std::vector<std::string> synonyms = {};  // names in other programs: an error suggests this one
  std::string group = {};                  // the heading in --help; empty: that of begin_group()
};

class Settings {
 public:
  using Variable = std::variant<std::string*, std::int64_t*, double*, bool*>;
  struct Entry : Setting {
    Variable variable;
  };

  // `owner` is for messages: "heads is an option of gpt, not of mnist".
  explicit Settings(std::string owner = {}) : owner_(std::move(owner)) {}

  // The variable outlives the table. InvalidArgument for a name of other characters, or one that
  // is there already.
  template <typename Value>
    requires std::constructible_from<Variable, Value*>
  void add(Setting setting, Value& variable) {
    add_entry({std::move(setting), &variable});
  }
  // The heading in --help for what is added from now on.
  void begin_group(std::string heading) { group_ = std::move(heading); }
  // An option that the owner does not have, but `other` has: entry() says so.
  void add_elsewhere(const std::string& name, const std::string& other);

  // In the order in which they were added: that of --help and config.toml.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  // BadInput for an unknown name, which suggests the nearest one.
  [[nodiscard]] const Entry& entry(std::string_view name) const;
  // BadInput that begins with the name and says what was expected and found; the variable is then
  // as it was.
  void set(std::string_view name, std::string_view text);
  // The value as set() reads it.
  [[nodiscard]] std::string text(std::string_view name) const { return text_of(entry(name)); }
  [[nodiscard]] static std::string text_of(const Entry& entry);
  // Whether set() would take the present value. A number outside of its bounds means: none given.
  [[nodiscard]] static bool is_given(const Entry& entry);

 private:
  void add_entry(Entry entry);

  std::string owner_;
  std::string group_ = "Task";
  std::vector<Entry> entries_;
  std::map<std::string, std::vector<std::string>, std::less<>> elsewhere_;
};

}  // namespace lockstep::train

#pragma GCC visibility pop
