#include "sys/program.h"

#include "base/check.h"
#include "base/escaped.h"
#include "sys/failure_text.h"

#include <lockstep/base/version.h>

#include <cerrno>
#include <cstdio>

namespace lockstep {
namespace {

constexpr std::size_t help_column = 28;
constexpr std::size_t help_width = 98;

std::string without_dashes(std::string_view word) {
  return std::string(word.substr(std::min(word.find_first_not_of('-'), word.size())));
}

// "-1" is a value; "-x" and "--name" are options.
bool looks_like_an_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] != '.' && (word[1] < '0' || word[1] > '9');
}

// Returns the lines of one option in help(): its words on the left, its meaning wrapped on the
// right.
std::string help_line(const std::string& left, const std::string& right) {
  std::string text = "  " + left, line;
  text.resize(std::max(text.size() + 1, help_column), ' ');
  for (const std::string& word : words_of(right)) {
    if (!line.empty() && help_column + line.size() + 1 + word.size() > help_width) {
      text += line + "\n" + std::string(help_column, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line + "\n";
}

std::string help_of(const CommandOptions::Option& option, bool is_flag) {
  std::string left = option.letter != 0 ? formatted("-{}, ", option.letter) : std::string();
  left += formatted("--{}{}{}", option.name, is_flag ? "" : " ", option.value);
  if (!option.flag_word.empty()) left += formatted(" [{}]", option.flag_word);
  std::string standard =
      option.standard.empty() ? std::string() : formatted(" [{}]", option.standard);
  return help_line(left, option.help + standard);
}

}  // namespace

CommandOptions::CommandOptions(std::string command, std::string usage, std::string about,
                               Words words)
    : command_(std::move(command)),
      usage_(std::move(usage)),
      about_(std::move(about)),
      policy_(words) {}

void CommandOptions::add(Option option, Take take) {
  bool is_flag = option.value.empty();
  declared_.push_back({std::move(option), std::move(take), is_flag});
}

const CommandOptions::Declared* CommandOptions::find(std::string_view word) const {
  auto named = [&](const Declared& one) {
    return word.starts_with("--") ? word.substr(2) == one.option.name
                                  : word.size() == 2 && word[1] == one.option.letter;
  };
  auto found = std::ranges::find_if(declared_, named);
  return found == declared_.end() ? nullptr : &*found;
}

void CommandOptions::unknown(std::string_view word) const {
  const std::string plain = without_dashes(word);
  for (const Declared& one : declared_)
    if (std::ranges::find(one.option.synonyms, plain) != one.option.synonyms.end())
      throw UsageError(
          formatted("unknown option '{}'; did you mean '--{}'?", word, one.option.name));
  std::vector<std::string> names{"--help", "--version"};
  for (const Declared& one : declared_)
    if (!one.option.help.empty()) names.push_back("--" + one.option.name);
  std::vector<std::string_view> known(names.begin(), names.end());
  if (auto meant = nearest("--" + plain, known))
    throw UsageError(formatted("unknown option '{}'; did you mean '{}'?", word, *meant));
  throw UsageError(formatted("unknown option '{}'; {} --help lists them", word, command_));
}

void CommandOptions::take_option(std::span<const std::string> words, std::size_t& at) {
  const std::string& word = words[at];
  bool is_long = word.starts_with("--");
  std::size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
  std::string_view name = std::string_view(word).substr(0, end);
  const Declared* declared = find(name);
  if (declared == nullptr) unknown(is_long ? name : std::string_view(word));
  std::string shown = "--" + declared->option.name;
  auto same = [&](const Given& one) { return one.declared == declared; };
  auto before = std::ranges::find_if(given_, same);
  std::string text;
  if (end < word.size()) {
    text = word.substr(end + (word[end] == '=' ? 1 : 0));
  } else if (declared->is_flag) {
    const std::string& value = declared->option.flag_word;
    const bool has_value = !value.empty() && at + 1 < words.size() && words[at + 1] == value;
    text = has_value ? words[++at] : "true";
  } else if (at + 1 < words.size() && !looks_like_an_option(words[at + 1])) {
    text = words[++at];
  } else {
    throw UsageError(formatted("{} needs a value", shown));
  }
  if (before != given_.end())
    throw UsageError(declared->is_flag ? formatted("{} is given twice", shown)
                                       : formatted("{} is given twice: '{}' and '{}'", shown,
                                                   before->text, text));
  given_.push_back({declared, std::move(text)});
}

CommandOptions::Request CommandOptions::read(std::span<const std::string> words) {
  given_.clear();
  words_.clear();
  bool options_are_over = false;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (!options_are_over && word == "--") {
      options_are_over = true;
    } else if (!options_are_over && word.size() > 1 && word[0] == '-') {
      if (word == "--help" || word == "-h") return Request::help;
      if (word == "--version" || word == "-V") return Request::version;
      take_option(words, at);
    } else {
      if (policy_ == Words::refused) throw UsageError(formatted("unexpected word '{}'", word));
      if (policy_ == Words::begin_a_program) options_are_over = true;
      words_.push_back(word);
      if (policy_ == Words::begin_a_program) {
        words_.insert(words_.end(), words.begin() + at + 1, words.end());
        break;
      }
    }
  }
  for (const Given& one : given_) {
    try {
      one.declared->take(one.text);
    } catch (const BadInput& error) {
      throw UsageError(formatted("--{}: {}", one.declared->option.name, error.what()));
    }
  }
  return Request::go_on;
}

std::string CommandOptions::help() const {
  std::string text =
      formatted("Usage: {} {}\n{}{}\nOptions:\n", command_, usage_, about_.empty() ? "" : "\n",
                about_.empty() || about_.ends_with('\n') ? about_ : about_ + "\n");
  std::vector<std::string> groups{""};
  for (const Declared& one : declared_)
    if (!one.option.help.empty() && std::ranges::find(groups, one.option.group) == groups.end())
      groups.push_back(one.option.group);
  for (const std::string& group : groups) {
    if (!group.empty()) text += formatted("\n{}:\n", group);
    for (const Declared& one : declared_)
      if (one.option.group == group && !one.option.help.empty())
        text += help_of(one.option, one.is_flag);
    if (!group.empty()) continue;
    text += help_line("-h, --help", "print this and end");
    text += help_line("-V, --version", "print the version and end");
  }
  return text;
}

CommandOptions::Take text_into(std::string& target) {
  return [&target](const std::string& text) { target = text; };
}

CommandOptions::Take duration_into(Duration& target) {
  return [&target](const std::string& text) {
    const auto duration = parse_duration(text);
    check_input(duration && *duration >= Duration::zero(),
                "expected a time such as 10, 2.5s or 1m, found '{}'", text);
    target = *duration;
  };
}

CommandOptions::Take flag_into(bool& target) {
  return [&target](const std::string& text) {
    if (text != "true" && text != "false")
      throw BadInput(formatted("expected true or false, found '{}'", text));
    target = text == "true";
  };
}

CommandOptions::Take word_into(std::string& target, std::span<const std::string_view> known) {
  return [&target, names = std::vector(known.begin(), known.end())](const std::string& text) {
    if (std::ranges::find(names, text) == names.end())
      throw BadInput(unknown_name("value", text, names));
    target = text;
  };
}

CommandOptions::Take words_into(std::vector<std::string>& target,
                                std::span<const std::string_view> known) {
  auto one = [&target, names = std::vector(known.begin(), known.end())](const std::string& text) {
    std::string word;
    word_into(word, names)(text);
    target.push_back(word);
  };
  return [&target, all = each_of(one)](const std::string& text) {
    target.clear();
    all(text);
  };
}

CommandOptions::Take each_of(std::function<void(const std::string& text)> take) {
  return [take = std::move(take)](const std::string& text) {
    for_each_part(text, ',', [&](std::string_view part) { take(std::string(part)); });
  };
}

std::int64_t checked_number(const std::string& text, std::int64_t least, std::int64_t most) {
  auto number = parse_integer(text);
  if (!number || *number < least || *number > most)
    throw BadInput(formatted("expected an integer from {} to {}, found '{}'", least, most, text));
  return *number;
}

namespace sys {

int complain(std::string_view command, std::string_view what, int code) {
  constexpr std::size_t longest = 4000;
  print_to(stderr, "{}: {}\n", command, escaped_line(what, longest));
  return code;
}

int run_program(std::string_view command, const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    return complain(command, error.what(), usage_exit_code);
  } catch (const std::exception& error) {
    return complain(command, failure_text(error), 1);
  }
}

std::optional<int> answer(CommandOptions::Request request, const CommandOptions& options) {
  if (request == CommandOptions::Request::version) return print_version();
  if (request == CommandOptions::Request::go_on) return std::nullopt;
  print_to(stdout, "{}", options.help());
  return 0;
}

void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) throw SystemError("cannot write to standard output", errno);
}

int print_version() {
  print_to(stdout, "lockstep {}\n", version());
  return 0;
}

}  // namespace sys

}  // namespace lockstep
