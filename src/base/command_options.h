// The command-line options of one program. A single table declares the options, parses and checks
// them, and prints --help. All programs use this class, so that the same mistake gets the same
// message everywhere.
//
//   int ranks = 1;
//   CommandOptions options("lockstep run", "[OPTIONS] PROGRAM [ARGUMENTS...]", about);
//   options.add({"ranks", "N", "Number of ranks", "1", 'n'}, whole_number(ranks, 1, 10'000));
//   if (options.read(words) == CommandOptions::Request::help) ...
//
// --name VALUE, --name=VALUE, -n VALUE and -nVALUE are equivalent. A flag is --name; --name=false
// turns it off. `--` ends the options. --help (-h) and --version (-V) are built in; arguments after
// either of them are ignored.
#pragma once

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// An invalid command line. Programs that catch it exit with code 2.
class UsageError : public BadInput {
  using BadInput::BadInput;
};
inline constexpr int usage_exit_code = 2;

class CommandOptions {
 public:
  // Takes the text of a value; flags get "true" or "false". Throws BadInput without the option's
  // name, such as "expected ..., found '...'".
  using Take = std::function<void(const std::string& text)>;

  struct Option {
    std::string name;                        // "ranks" for --ranks
    std::string value;                       // placeholder in --help, such as "N"; empty for a flag
    std::string help;                        // if empty, --help does not list the option
    std::string standard = {};               // default value, shown by --help
    char letter = 0;                         // short form: 'n' for -n
    std::string flag_word = {};              // for a flag: a word that may follow it as its value
    std::string group = {};                  // heading in --help; if empty, "Options"
    std::vector<std::string> synonyms = {};  // other programs' names, only for suggestions
  };

  // How to treat words that are not options.
  enum class Words { refused, allowed, begin_a_program };
  enum class Request { go_on, help, version };

  // `command` is the text that the user typed, such as "lockstep run". `usage` follows it in the
  // first line of help(). `about` is the paragraph below, already wrapped.
  CommandOptions(std::string command, std::string usage, std::string about,
                 Words words = Words::refused);

  void add(Option option, Take take);

  // Reads all words, then passes the values to their Take functions in the order in which they were
  // given. Throws UsageError with a one-line message.
  [[nodiscard]] Request read(std::span<const std::string> words);

  // Returns the words that are not options; call it after read(). With begin_a_program, returns the
  // first such word and everything after it, including options.
  [[nodiscard]] const std::vector<std::string>& words() const { return words_; }

  [[nodiscard]] std::string help() const;

 private:
  struct Declared {
    Option option;
    Take take;
    bool is_flag = false;
  };
  struct Given {
    const Declared* declared;
    std::string text;
  };

  void take_option(std::span<const std::string> words, std::size_t& at);
  [[nodiscard]] const Declared* find(std::string_view word) const;
  [[noreturn]] void unknown(std::string_view word) const;

  std::string command_, usage_, about_;
  Words policy_;
  std::vector<Declared> declared_;
  std::vector<Given> given_;
  std::vector<std::string> words_;
};

// Ready-made Take functions. Each of them sets `target`, which must outlive read().
[[nodiscard]] CommandOptions::Take text_into(std::string& target);
[[nodiscard]] CommandOptions::Take flag_into(bool& target);
[[nodiscard]] CommandOptions::Take word_into(std::string& target,
                                             std::span<const std::string_view> known);
// Accepts several words, separated by commas.
[[nodiscard]] CommandOptions::Take words_into(std::vector<std::string>& target,
                                              std::span<const std::string_view> known);
// Calls `take` for each value of a comma-separated list.
[[nodiscard]] CommandOptions::Take each_of(std::function<void(const std::string& text)> take);

// Parses a number. Throws BadInput, which names the expected range, unless `text` is a number from
// `least` to `most`.
[[nodiscard]] std::int64_t checked_number(const std::string& text, std::int64_t least,
                                          std::int64_t most);

template <std::integral Number>
[[nodiscard]] CommandOptions::Take number_into(Number& target, std::int64_t least,
                                               std::int64_t most) {
  return [&target, least, most](const std::string& text) {
    target = static_cast<Number>(checked_number(text, least, most));
  };
}

// Accepts a non-negative time: "10", "2.5s", "1m".
[[nodiscard]] CommandOptions::Take duration_into(Duration& target);

// Sets `target` to the value in `known` whose name is the text.
template <class Value>
[[nodiscard]] CommandOptions::Take choice_into(
    Value& target, std::initializer_list<std::pair<std::string_view, Value>> known) {
  return [&target, known = std::vector(known)](const std::string& text) {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : known) {
      names.push_back(name);
      if (name == text) target = value;
    }
    if (std::ranges::find(names, text) == names.end())
      throw BadInput(unknown_name("value", text, names));
  };
}

}  // namespace lockstep
