// Settings: the named values of a run, each bound to a variable of the program. One table serves
// the command line (`--weight-decay 0.1`), TOML files (`weight-decay = 0.1`), --help, the
// config.toml that a run leaves behind, checkpoints, and the metadata of model files.
//
//   void declare(lockstep::train::Settings& settings) override {
//     settings.add({.name = "width", .help = "features between layers", .least = 1}, width_);
//   }
//
// Variables may be texts, numbers, flags and enums (NamedEnum below); WrittenValue binds variables
// of other types. The value of a variable when it is added is its default. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Says which files record a setting, and whether a resumed run may change it.
enum class Scope {
  start,  // recorded in no file: applies to one start of the program
  run,    // recorded in config.toml and checkpoints; may change
  model,  // recorded in model files too, because it is needed to make the model; may change
  shape   // like model, but may not change: it determines the parameters' shapes or meaning
};

struct Setting {
  std::string name;             // small letters, digits and dashes
  std::string help;             // for --help: one line
  std::string value_name = {};  // for --help: "AXES"; empty: WORD, PATH or N by its kind
  double least = 0;             // bounds of a number, both included
  double most = 1e15;
  // The text names a file or folder. Config files record it with the folder in front.
  bool is_path = false;
  // A value other than the default requires all of these (Settings::check_needs()). "elastic" or
  // "diloco": that setting has a value other than its default. "shard full", "strategy
  // ddp|threads": the setting's value is one of these words. "mesh pp=N", "hook powersgd:RANK":
  // likewise, compared up to '=' or ':'. "no mesh": the setting has its default.
  std::vector<std::string> needs = {};
  Scope scope = Scope::run;
  std::function<void()> changed = {};  // called after a value is set
  // Names of this setting in other programs; an error suggests this setting for them.
  std::vector<std::string> synonyms = {};
  std::string group = {};  // the heading in --help; empty: the current begin_group()
};

// A word in command lines and files, with the value that it stands for.
template <class Value>
struct Named {
  std::string_view word;
  Value value;
};

// To bind an enum, define a function names_of() next to the enum. It returns the word of each
// value:
//
//   enum class Shape { round, square };
//   constexpr std::array<Named<Shape>, 2> names_of(Shape) {
//     return {{{"round", Shape::round}, {"square", Shape::square}}};
//   }
template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) { names_of(value); };

// A variable that is read and written as text.
struct WrittenValue {
  std::vector<std::string> words = {};  // all possible texts; empty: not a fixed list
  std::function<std::string()> text;
  // Throws BadInput that says what was expected and found.
  std::function<void(std::string_view text)> set;
  bool is_number = false;  // written without quotes in files
  // Returns true if set() accepts the current value; false means that the setting is not given.
  // Null: always true.
  std::function<bool()> is_given = {};
  // Returns the text for config.toml if it differs from text(), because the value follows from
  // other settings. Null: use text().
  std::function<std::string()> file_text = {};
};

// Binds a variable to a fixed list of values, each written as a word.
template <class Value>
[[nodiscard]] WrittenValue in_words(std::vector<Named<Value>> names, Value& variable);

template <NamedEnum Enum>
[[nodiscard]] std::string_view word_of(Enum value);

class Settings {
 public:
  struct Entry : Setting {
    WrittenValue variable;
    std::string standard = {};  // the default, in the form of text_of()

    // True for a free text or a choice of words; written in quotes in files.
    [[nodiscard]] bool is_text() const { return !variable.is_number && !is_flag(); }
    // True for a boolean, which needs no value on a command line.
    [[nodiscard]] bool is_flag() const;
    // For --help: "WORD"; empty for a flag.
    [[nodiscard]] std::string_view value_in_help() const;
  };

  // `owner` is used in messages: "heads is an option of gpt, not of mnist".
  explicit Settings(std::string owner = {}) : owner_(std::move(owner)) {}

  // Adds a setting. The variable must outlive the table. Throws InvalidArgument for a name with
  // invalid characters, or one that exists already.
  void add(Setting setting, std::string& variable);
  void add(Setting setting, std::int64_t& variable);
  void add(Setting setting, int& variable);
  void add(Setting setting, double& variable);
  void add(Setting setting, bool& variable) {
    add(std::move(setting), in_words<bool>({{"false", false}, {"true", true}}, variable));
  }
  template <NamedEnum Enum>
  void add(Setting setting, Enum& variable) {
    const auto names = names_of(Enum{});
    add(std::move(setting), in_words<Enum>({names.begin(), names.end()}, variable));
  }
  void add(Setting setting, WrittenValue variable);
  // Sets the heading in --help for settings that are added from now on.
  void begin_group(std::string heading) { group_ = std::move(heading); }
  // Adds an option that only `other` has, not the owner, so that entry() can say so.
  void add_elsewhere(const std::string& name, const std::string& other);

  // All settings in the order in which they were added, which is the order in --help and
  // config.toml.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  // Returns null if there is no setting of this name.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  // Throws BadInput for an unknown name and suggests the nearest one.
  [[nodiscard]] const Entry& entry(std::string_view name) const;
  // Sets the variable from text. On failure, throws BadInput that begins with the name and says
  // what was expected and found; the variable is unchanged then.
  void set(std::string_view name, std::string_view text);
  // Returns the value in the form that set() reads.
  [[nodiscard]] std::string text(std::string_view name) const { return text_of(entry(name)); }
  [[nodiscard]] static std::string text_of(const Entry& entry);
  // Returns false if the value is a number outside its bounds, which means that it is not given.
  [[nodiscard]] static bool is_given(const Entry& entry);
  // Throws BadInput with one line if a setting has a value other than its default but lacks a
  // setting that it needs: "--prefetch 3 needs --shard full, found --shard none".
  void check_needs() const;

 private:
  std::string owner_;
  std::string group_ = "Task";
  std::vector<Entry> entries_;
  std::map<std::string, std::vector<std::string>, std::less<>> elsewhere_;
};

namespace detail {
// Returns the index of the word. Throws BadInput that suggests the nearest word if it is missing.
[[nodiscard]] std::size_t place_of_word(std::span<const std::string> words, std::string_view text);
// Throws InvalidArgument for a value that no word stands for.
[[noreturn]] void throw_without_word(std::span<const std::string> words);
}  // namespace detail

template <class Value>
WrittenValue in_words(std::vector<Named<Value>> names, Value& variable) {
  std::vector<std::string> words;
  for (const Named<Value>& name : names) words.emplace_back(name.word);
  return {.words = words,
          .text =
              [names, words, &variable] {
                for (const Named<Value>& name : names)
                  if (name.value == variable) return std::string(name.word);
                detail::throw_without_word(words);
              },
          .set =
              [names, words, &variable](std::string_view text) {
                variable = names[detail::place_of_word(words, text)].value;
              }};
}

template <NamedEnum Enum>
std::string_view word_of(Enum value) {
  std::vector<std::string> words;
  for (const auto& name : names_of(value)) {
    if (name.value == value) return name.word;
    words.emplace_back(name.word);
  }
  detail::throw_without_word(words);
}

}  // namespace lockstep::train

#pragma GCC visibility pop
