// Runs an agent in this process and captures its output.
#pragma once

#include <chrono>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "launch/agent.h"
#include "sys/file_descriptor.h"

namespace lockstep::launch {

struct Ran {
  AgentResult result;
  std::string output, error;
  std::chrono::milliseconds took{};
};

// A file in memory that replaces a terminal.
class Screen {
 public:
  [[nodiscard]] int descriptor() const { return file_.get(); }
  [[nodiscard]] std::string text() const {
    std::string text(static_cast<std::size_t>(::lseek(file_.get(), 0, SEEK_END)), '\0');
    text.resize(static_cast<std::size_t>(::pread(file_.get(), text.data(), text.size(), 0)));
    return text;
  }

 private:
  sys::FileDescriptor file_{::memfd_create("screen", MFD_CLOEXEC)};
};

// `ranks` shells that run the script.
inline WorkerSpec shells(int ranks, std::string script) {
  return {.program = "sh",
          .arguments = {"-c", std::move(script)},
          .ranks = ranks,
          .input = StandardInput::none};
}

// Shell command that waits until `condition` (a shell command) succeeds. Tests wait for events with
// it, so that slow machines do not matter. The test's watchdog ends a test whose event never
// happens.
inline std::string until(const std::string& condition) {
  return "until " + condition + "; do sleep 0.02; done; ";
}

// Shell command that waits until the folder has at least `count` files.
inline std::string until_files(int count, const std::string& folder) {
  return until("[ $(ls " + folder + " | wc -l) -ge " + std::to_string(count) + " ]");
}

// Shell command for a rank: waits until all ranks of its round have reached it.
inline std::string all_come(int ranks, const std::string& folder) {
  return ": > " + folder + "/at$LOCKSTEP_ROUND.$RANK; " +
         until("[ $(ls " + folder + " | grep -c \"^at$LOCKSTEP_ROUND[.]\") -ge " +
               std::to_string(ranks) + " ]");
}

inline std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

// A run that takes longer than this did not end by itself, but by a timeout or by its own `sleep
// 60`.
inline constexpr std::chrono::seconds far_too_long{30};

inline Ran run_agent(WorkerSpec spec) {
  const Screen output, error;
  spec.output = output.descriptor();
  spec.error = error.descriptor();
  const auto begin = Clock::now();
  AgentResult result = Agent(std::move(spec)).run();
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  return {std::move(result), output.text(), error.text(), took};
}

}  // namespace lockstep::launch
