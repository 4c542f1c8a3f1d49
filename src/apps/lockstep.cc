// lockstep: contains the commands `run`, `store` and `info`; every other command is a program
// lockstep-NAME in the same folder.
#include "apps/commands.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/environment.h"
#include "sys/files.h"
#include "sys/program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

using namespace lockstep::apps;
namespace launch = lockstep::launch;
using lockstep::print_to;

constexpr const char* usage_before_siblings =
    "Usage: lockstep COMMAND [OPTIONS]\n"
    "\n"
    "  run         start a program as N ranks, on this machine or on several\n"
    "  store       serve the store at which the nodes of a run meet, apart from them\n"
    "  info        what this build has and what this machine offers\n";
constexpr const char* usage_after_siblings =
    "  help        this text; `lockstep help COMMAND` is `lockstep COMMAND --help`\n"
    "  version     print the version; also --version, -V\n";

// Siblings are the programs lockstep-NAME in this program's folder.
constexpr std::string_view sibling_prefix = "lockstep-";
constexpr int no_such_sibling = -1;

std::filesystem::path own_folder() { return lockstep::sys::own_program().parent_path(); }

// The names of the siblings, sorted.
std::vector<std::string> sibling_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(own_folder(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(sibling_prefix) && ::access(entry.path().c_str(), X_OK) == 0)
      names.push_back(name.substr(sibling_prefix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Executes lockstep-NAME with these arguments in place of this process. Returns if there is no such
// program, or, after an error message, with an exit code if it cannot be executed.
int become_sibling(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string file = (own_folder() / (std::string(sibling_prefix) + name)).string();
  if (name.find('/') != std::string::npos || ::access(file.c_str(), F_OK) != 0)
    return no_such_sibling;
  std::vector<char*> argv{const_cast<char*>(file.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(file.c_str(), argv.data());
  print_to(stderr, "lockstep: cannot execute {}: {}\n", file, std::strerror(errno));
  return 126;
}

// Describes the siblings that belong to Lockstep; other siblings are listed by name only.
std::string_view about(std::string_view sibling) {
  if (sibling == "train") return "train a model: gpt, llama, moe, mnist, cifar, mlp";
  if (sibling == "generate") return "write text with a trained gpt, llama or moe";
  if (sibling == "eval") return "measure a trained model";
  if (sibling == "checkpoint")
    return "look at checkpoints: ls, show, verify, diff, reshard, convert";
  if (sibling == "plan") return "show what a way of training will take: pipeline";
  if (sibling == "report") return "explain what ranks left behind: hang";
  if (sibling == "bench") return "measure this machine: collectives";
  return "";
}

int print_usage(std::FILE* to) {
  print_to(to, "{}", usage_before_siblings);
  for (const std::string& name : sibling_names()) print_to(to, "  {:<11} {}\n", name, about(name));
  print_to(to, "{}", usage_after_siblings);
  return to == stdout ? 0 : lockstep::usage_exit_code;
}

int unknown_command(const std::string& name) {
  const bool is_option = name.starts_with("-");
  const std::vector<std::string> siblings = sibling_names();
  std::vector<std::string_view> known{"--help", "--version"};
  if (!is_option) {
    known = {"run", "store", "info", "help", "version"};
    known.insert(known.end(), siblings.begin(), siblings.end());
  }
  std::string text = lockstep::unknown_name(is_option ? "option" : "command", name, known);
  if (name == "-n" || name.find('/') != std::string::npos)
    text += "; to start a program: lockstep run -n 2 PROGRAM";
  return lockstep::sys::complain("lockstep", text, lockstep::usage_exit_code);
}

bool asks_for_help(std::string_view word) {
  return word == "help" || word == "--help" || word == "-h";
}

int dispatch(const std::string& command, std::vector<std::string> rest) {
  if (command == "--version" || command == "-V" || command == "version")
    return lockstep::sys::print_version();
  if (asks_for_help(command)) {
    if (rest.empty() || asks_for_help(rest.front())) return print_usage(stdout);
    return dispatch(rest.front(), {"--help"});
  }
  if (command == "run") return run_command(rest);
  if (command == "store") return store_command(rest);
  if (command == "info") return info_command(rest);
  launch::spin_briefly();  // LibTorch's threads read the setting when it is loaded
  const int code = become_sibling(command, rest);
  return code == no_such_sibling ? unknown_command(command) : code;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return print_usage(stderr);
  return lockstep::sys::run_program("lockstep", [&] {
    return dispatch(words[1], std::vector<std::string>(words + 2, words + count));
  });
}
