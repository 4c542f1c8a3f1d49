// The command lines of our programs, how the programs report a failure, and their exit codes. 0:
// success. 1: failure; a line on standard error gives the reason. 2: invalid command line.
#pragma once

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// An invalid command line. Programs then exit with code 2.
class UsageError : public BadInput {
  using BadInput::BadInput;
};
inline constexpr int usage_exit_code = 2;

// The options of one command: one table from which options are parsed, checked and listed by
// --help. All programs use this class, so that equal mistakes get equal messages.
//
//   int ranks = 1;
//   CommandOptions options("lockstep run", "[OPTIONS] PROGRAM [ARGUMENTS...]", about);
//   options.add({"ranks", "N", "Number of ranks", "1", 'n'}, whole_number(ranks, 1, 10'000));
//   if (options.read(words) == CommandOptions::Request::help) ...
//
// --name VALUE, --name=VALUE, -n VALUE and -nVALUE are equivalent; a flag is --name, or
// --name=false to unset it. `--` ends the options. --help (-h) and --version (-V) are always
// defined; arguments after them are ignored.
class CommandOptions {
 public:
  // Parses the text of a value ("true" or "false" for a flag). Throws BadInput without the option's
  // name: "expected ..., found '...'".
  using Take = std::function<void(const std::string& text)>;

  struct Option {
    std::string name;                        // "ranks": --ranks
    std::string value;                       // the name of its value in --help: "N"; empty: a flag
    std::string help;                        // empty: the option is not listed
    std::string standard = {};               // the default value, for --help
    char letter = 0;                         // 'n': also -n
    std::string flag_word = {};              // a word that may follow a flag as its value
    std::string group = {};                  // the heading in --help; empty: "Options"
    std::vector<std::string> synonyms = {};  // names in other programs, only for suggestions
  };

  // Words that are not options.
  enum class Words { refused, allowed, begin_a_program };
  enum class Request { go_on, help, version };

  // `command` is the command as typed: "lockstep run". `usage` follows it in the first line of
  // help(). `about` is the paragraph below, already broken into lines.
  CommandOptions(std::string command, std::string usage, std::string about,
                 Words words = Words::refused);

  void add(Option option, Take take);

  // Parses all words, then passes the values to the options' Take functions in the order of the
  // words. Throws UsageError with a one-line message.
  [[nodiscard]] Request read(std::span<const std::string> words);

  // Returns, after read(), the words that are not options; with begin_a_program, the first such
  // word and all words after it.
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

// The kinds of options. Each function returns a Take that sets `target`, which must exist until
// read() returns.
[[nodiscard]] CommandOptions::Take text_into(std::string& target);
[[nodiscard]] CommandOptions::Take flag_into(bool& target);
[[nodiscard]] CommandOptions::Take word_into(std::string& target,
                                             std::span<const std::string_view> known);
// Several words, separated by commas.
[[nodiscard]] CommandOptions::Take words_into(std::vector<std::string>& target,
                                              std::span<const std::string_view> known);
// Calls `take` for each of several words that are separated by commas.
[[nodiscard]] CommandOptions::Take each_of(std::function<void(const std::string& text)> take);

// Returns the number; throws BadInput if the text is not a number from `least` to `most`.
[[nodiscard]] std::int64_t checked_number(const std::string& text, std::int64_t least,
                                          std::int64_t most);

template <std::integral Number>
[[nodiscard]] CommandOptions::Take number_into(Number& target, std::int64_t least,
                                               std::int64_t most) {
  return [&target, least, most](const std::string& text) {
    target = static_cast<Number>(checked_number(text, least, most));
  };
}

// A time, 0 or longer: "10", "2.5s", "1m".
[[nodiscard]] CommandOptions::Take duration_into(Duration& target);

// A value of `known`, given by its name.
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

namespace sys {

// Prints "lockstep run: ..." as one line on standard error. Returns `code`.
int complain(std::string_view command, std::string_view what, int code);

// Runs the body of a program; converts an exception to a line on standard error and an exit code.
[[nodiscard]] int run_program(std::string_view command, const std::function<int()>& body);

// Prints the help or the version if `request` asks for it, and returns the exit code; std::nullopt
// if the program should continue.
[[nodiscard]] std::optional<int> answer(CommandOptions::Request request,
                                        const CommandOptions& options);

// Writes to standard output at once. Throws SystemError if the output is full or closed, because a
// lost result must not look like success.
void write_out(std::string_view text);

// Prints "lockstep 0.1.0". Returns 0.
int print_version();

}  // namespace sys

}  // namespace lockstep
