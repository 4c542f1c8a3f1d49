// Runs an agent in this process and keeps what it printed.
#pragma once

#include <chrono>
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

// A file in memory that stands for a terminal.
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
