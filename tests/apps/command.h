// Starts the built program `lockstep` and reads what it prints.
#pragma once

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/base/deadline.h>
#include "sys/file_descriptor.h"
#include "sys/process.h"

namespace lockstep::apps {

inline std::string lockstep_program() { return LOCKSTEP_PROGRAM_DIR "/lockstep"; }

struct Finished {
  sys::ExitStatus status;
  std::string output, error;
};

struct Started {
  sys::Process process;
  sys::FileDescriptor output, error;
};

inline Started start_lockstep(const std::vector<std::string>& words) {
  sys::Command command{.file = lockstep_program(), .arguments = {"lockstep"}, .environment = {}};
  command.arguments.insert(command.arguments.end(), words.begin(), words.end());
  for (char** entry = environ; *entry != nullptr; ++entry) command.environment.emplace_back(*entry);
  sys::FileDescriptor output(::memfd_create("output", MFD_CLOEXEC)),
      error(::memfd_create("error", MFD_CLOEXEC));
  command.output = output.get();
  command.error = error.get();
  command.end_with_parent = true;
  return {sys::Process::spawn(command), std::move(output), std::move(error)};
}

inline std::string content(const sys::FileDescriptor& file) {
  std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
  text.resize(static_cast<std::size_t>(::pread(file.get(), text.data(), text.size(), 0)));
  return text;
}

// Waits for the program to end; the watchdog handles a program that hangs.
inline Finished finish(Started started) {
  const auto status = started.process.wait(Deadline::never());
  return {*status, content(started.output), content(started.error)};
}

inline Finished lockstep_command(const std::vector<std::string>& words) {
  return finish(start_lockstep(words));
}

}  // namespace lockstep::apps
