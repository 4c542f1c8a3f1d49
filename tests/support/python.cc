#include "support/python.h"

#include "support/warm_python.h"
#include "support/watchdog.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include <sys/wait.h>

namespace lockstep::test {
namespace {

constexpr int seconds_of_python = 240;  // mostly for loading torch from a slow disk

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

// An environment whose installation was interrupted has a Python without torch.
bool has_torch(const std::filesystem::path& environment) {
  std::error_code error;
  for (const auto& version : std::filesystem::directory_iterator(environment / "lib", error))
    if (std::filesystem::exists(version.path() / "site-packages/torch/version.py")) return true;
  return false;
}

}  // namespace

std::optional<std::filesystem::path> python() {
  if (const char* named = std::getenv("LOCKSTEP_PYTHON")) {
    if (*named == '\0') return std::nullopt;
    return named;
  }
  return python_of(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / ".venv");
}

std::optional<std::filesystem::path> python_of(const std::filesystem::path& environment) {
  std::filesystem::path program = environment / "bin/python";
  if (!std::filesystem::exists(program) || !has_torch(environment)) return std::nullopt;
  return program;
}

PythonResult run_python(const std::string& script, const std::vector<std::string>& arguments) {
  auto program = warm_python();
  if (!program) throw std::runtime_error(std::string(no_python));
  allow_more_time(seconds_of_python);
  std::string command = quoted(program->string()) + " -c " + quoted(script);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr)
    throw std::system_error(errno, std::generic_category(), "starting " + program->string());
  PythonResult result;
  std::array<char, 4096> buffer{};
  while (std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), count);
  int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace lockstep::test
