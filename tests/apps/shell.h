// Runs a shell command and returns its result.
#pragma once

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <sys/wait.h>

namespace lockstep::test {

struct ShellResult {
  int exit_code = -1;
  std::string output;  // standard output; add 2>&1 for the rest
};

inline ShellResult shell(const std::string& line) {
  std::FILE* pipe = ::popen(line.c_str(), "re");
  if (pipe == nullptr) throw std::runtime_error("cannot start a shell");
  ShellResult result;
  std::array<char, 4096> buffer{};
  while (std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), count);
  int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

// Returns the path of a program of this build.
inline std::string program(const std::string& name) {
  return std::string(LOCKSTEP_PROGRAM_DIR) + "/" + name;
}

inline std::string last_line(const std::string& text) {
  std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  std::size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

inline int count_lines(const std::string& text) {
  int lines = 0;
  for (char letter : text) lines += letter == '\n';
  return lines;
}

}  // namespace lockstep::test
