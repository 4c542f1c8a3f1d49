// Settings: the named values of a run, each bound to a variable of the program. One table serves
// the command line (`--weight-decay 0.1`), TOML files (`weight-decay = 0.1`), --help, the
// config.toml that a run leaves behind, checkpoints, and the metadata of model files.
//
//   void declare(lockstep::train::Settings& settings) override {
//     settings.add({.name = "width", .help = "features between layers", .least = 1}, width_);
//   }
//
// Variables are texts, numbers, flags and enums (NamedEnum below); WrittenValue binds others. The
// value of a variable when it is added is its default. Not thread-safe.
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

// Which files keep a setting, and whether a resumed run may have another value.
enum class Scope {
  start,  // of one start of the program: in no file
  run,    // in config.toml and checkpoints; may change
  model,  // in model files too, whose model is made with it; may change
  shape   // the same, and may not change: the parameters' shapes or meaning follow from it
};

struct Setting {
  std::string name;             // small letters, digits and dashes
  std::string help;             // for --help: one line
  std::string value_name = {};  // for --help: "AXES"; empty: WORD, PATH or N by its kind
  double least = 0;             // bounds of a number, both included
  double most = 1e15;
  // A text that names a file or folder. Files keep it with the folder in front.
  bool is_path = false;
  // A value other than the default needs all of these (Settings::check_needs()).
  // "elastic" or "diloco": another value than their default; "shard full", "strategy ddp|dp": one
  // of these words in the value; "mesh pp=N", "hook powersgd:RANK": likewise, up to '=' or ':';
  // "no mesh": the default.
  std::vector<std::string> needs = {};
  Scope scope = Scope::run;
  std::function<void()> changed = {};      // called after a value was set
  std::vector<std::string> synonyms = {};  // names in other programs: an error suggests this one
  std::string group = {};                  // the heading in --help; empty: that of begin_group()
};

// A word of command lines and files, and the value that it stands for.
template <class Value>
struct Named {
  std::string_view word;
  Value value;
};

// Names of an enum are what names_of() returns for a value of it, found beside the enum:
//
//   enum class Shape { round, square };
//   constexpr std::array<Named<Shape>, 2> names_of(Shape) {
//     return {{{"round", Shape::round}, {"square", Shape::square}}};
//   }
template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) { names_of(value); };

// A variable as texts.
struct WrittenValue {
  std::vector<std::string> words = {};  // all texts of it; empty: there are others, too
  std::function<std::string()> text;
  std::function<void(std::string_view text)> set;  // BadInput says what was expected and found
  bool is_number = false;                          // in files without quotes
  // Whether set() accepts the present value, which else means: not given. Null: it does.
  std::function<bool()> is_given = {};
  // What config.toml keeps instead of text(), which follows from other settings. Null: text().
  std::function<std::string()> file_text = {};
};

// The variable has one of these values, each of which is written as a word.
template <class Value>
[[nodiscard]] WrittenValue in_words(std::vector<Named<Value>> names, Value& variable);

template <NamedEnum Enum>
[[nodiscard]] std::string_view word_of(Enum value);

class Settings {
 public:
  struct Entry : Setting {
    WrittenValue variable;
    std::string standard = {};  // the default, as text_of() has it

    // A text without choices or one of several words; written in quotes in files.
    [[nodiscard]] bool is_text() const { return !variable.is_number && !is_flag(); }
    // true or false: no value is needed on a command line.
    [[nodiscard]] bool is_flag() const;
    // For --help: "WORD"; empty for a flag.
    [[nodiscard]] std::string_view value_in_help() const;
  };

  // `owner` is for messages: "heads is an option of gpt, not of mnist".
  explicit Settings(std::string owner = {}) : owner_(std::move(owner)) {}

  // The variable outlives the table. InvalidArgument for a name of other characters, or one that
  // is there already.
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
  // The heading in --help for what is added from now on.
  void begin_group(std::string heading) { group_ = std::move(heading); }
  // An option that the owner does not have, but `other` has: entry() says so.
  void add_elsewhere(const std::string& name, const std::string& other);

  // In the order in which they were added: that of --help and config.toml.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  // Null if there is none of this name.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  // BadInput for an unknown name, which suggests the nearest one.
  [[nodiscard]] const Entry& entry(std::string_view name) const;
  // BadInput that begins with the name and says what was expected and found; the variable is then
  // as it was.
  void set(std::string_view name, std::string_view text);
  // The value as set() reads it.
  [[nodiscard]] std::string text(std::string_view name) const { return text_of(entry(name)); }
  [[nodiscard]] static std::string text_of(const Entry& entry);
  // A number outside its bounds means: not given.
  [[nodiscard]] static bool is_given(const Entry& entry);
  // BadInput in one line for a setting whose value is not its default, and which lacks what it
  // needs: "--prefetch 3 needs --shard full, found --shard none".
  void check_needs() const;

 private:
  std::string owner_;
  std::string group_ = "Task";
  std::vector<Entry> entries_;
  std::map<std::string, std::vector<std::string>, std::less<>> elsewhere_;
};

namespace detail {
// The place of the word; BadInput suggests the nearest one.
[[nodiscard]] std::size_t place_of_word(std::span<const std::string> words, std::string_view text);
// InvalidArgument: a value that none of these words stands for.
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
