// A file that one process at a time holds, for as long as it uses what lies beside it.
#pragma once

#include "sys/file_descriptor.h"
#include "sys/own_process.h"

#include <filesystem>
#include <string>

namespace lockstep::sys {

// The lock is flock()'s: the kernel releases it when its holder ends, however that happens.
// Children that the holder forked do not keep it. The holder's process id and host are in the file,
// for the messages of others.
class FileLock {
 public:
  enum class State {
    held,        // by this object
    busy,        // another has it
    impossible,  // the filesystem knows no locks (some network filesystems)
  };

  // Makes the file where it is missing and tries once; never waits. SystemError when the file
  // cannot be made or opened; BadInput when a link has that name, or what is no lock's file.
  explicit FileLock(std::filesystem::path path);
  // Gives the lock back and removes the file. Nothing in a forked child.
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  [[nodiscard]] State state() const { return state_; }
  // Of a held lock: whether it is known to keep out the processes of all hosts that see the file.
  // Filesystems of several hosts may be mounted so that each host has locks of its own.
  [[nodiscard]] bool reaches_everybody() const { return reaches_everybody_; }
  // Of a busy lock: "process 71 on host a". Of an impossible one: the system's words.
  [[nodiscard]] const std::string& about() const { return about_; }

 private:
  // Whether the lock is decided; false when its last holder has removed the file meanwhile.
  [[nodiscard]] bool try_once();
  void check_is_lock() const;
  void sign() const;
  void close();

  OwnProcess process_;
  std::filesystem::path path_;
  FileDescriptor file_;
  State state_ = State::busy;
  bool reaches_everybody_ = false;
  std::string about_;
};

}  // namespace lockstep::sys
