// The command lines of our programs, how they report a failure, and their exit codes. 0: done.
// 1: it failed, and a line on standard error says why. 2: the command line makes no sense.
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

// A command line that cannot be meant. Programs end with exit code 2 after it.
class UsageError : public BadInput {
  using BadInput::BadInput;
};
inline constexpr int usage_exit_code = 2;

// The options of one command: declared once; read, checked and listed by --help from one table. All
// programs take their command lines by it, so that the same mistake gets the same words everywhere.
//
//   int ranks = 1;
//   CommandOptions options("lockstep run", "[OPTIONS] PROGRAM [ARGUMENTS...]", about);
//   options.add({"ranks", "N", "Number of ranks", "1", 'n'}, whole_number(ranks, 1, 10'000));
//   if (options.read(words) == CommandOptions::Request::help) ...
//
// --name VALUE, --name=VALUE, -n VALUE and -nVALUE are the same; a flag is --name, or
// --name=false to take it back. `--` ends the options. --help (-h) and --version (-V) are there
// without being declared, and what follows them is not looked at.
class CommandOptions {
 public:
  // Takes the text of a value ("true" or "false" of a flag). Throws BadInput that leaves out the
  // option's name: "expected ..., found '...'".
  using Take = std::function<void(const std::string& text)>;

  struct Option {
    std::string name;            // "ranks": --ranks
    std::string value;           // how --help calls its value: "N"; empty: a flag
    std::string help;            // empty: the option is not listed
    std::string standard = {};   // the value without it, for --help
    char letter = 0;             // 'n': also -n
    std::string flag_word = {};  // of a flag: a word that may follow it as its value
    std::string group = {};      // the heading below which --help lists it; empty: "Options"
    std::vector<std::string> synonyms = {};  // names of other programs, which are suggestions alone
  };

  // Words that are no options.
  enum class Words { refused, allowed, begin_a_program };
  enum class Request { go_on, help, version };

  // `command` is the command as typed: "lockstep run". `usage` follows it in the first line of
  // help(). `about` is the paragraph below, in lines that are already short enough.
  CommandOptions(std::string command, std::string usage, std::string about,
                 Words words = Words::refused);

  void add(Option option, Take take);

  // Reads all words, then hands the values over in the order in which they were given. Throws
  // UsageError in one line.
  [[nodiscard]] Request read(std::span<const std::string> words);

  // After read(): those that are no options; with begin_a_program the first of them and all behind
  // it, whatever they look like.
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

// The kinds of options. Each function returns a Take that sets `target`, which must outlive the
// reading.
[[nodiscard]] CommandOptions::Take text_into(std::string& target);
[[nodiscard]] CommandOptions::Take flag_into(bool& target);
[[nodiscard]] CommandOptions::Take word_into(std::string& target,
                                             std::span<const std::string_view> known);
// Several words, separated by commas.
[[nodiscard]] CommandOptions::Take words_into(std::vector<std::string>& target,
                                              std::span<const std::string_view> known);
// For each of several.
[[nodiscard]] CommandOptions::Take each_of(std::function<void(const std::string& text)> take);

// The number, or BadInput that says which were expected.
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

// The value among `known` that the text names.
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

// Prints what was asked for, and gives the exit code; nothing when the command has to go on.
[[nodiscard]] std::optional<int> answer(CommandOptions::Request request,
                                        const CommandOptions& options);

// Writes to standard output at once. Throws SystemError if the output is full or closed, because a
// lost result must not look like success.
void write_out(std::string_view text);

// "lockstep 0.1.0". Returns 0.
int print_version();

}  // namespace sys

}  // namespace lockstep
