// A file lock that one process at a time holds while it uses the files beside it.
#pragma once

#include "sys/file_descriptor.h"

#include <filesystem>
#include <string>

namespace lockstep::sys {

// Uses flock(): the kernel releases the lock when its holder ends, in any way. Forked children of
// the holder do not inherit the lock. The file contains the pid and host of the holder, for other
// processes' messages.
class FileLock {
 public:
  enum class State {
    held,        // by this object
    busy,        // held by another process or object
    impossible,  // the filesystem does not support locks (some network filesystems)
  };

  // Creates the file if it does not exist and tries once to lock it; never waits. Throws
  // SystemError if the file cannot be created or opened, and BadInput if the path is a link or a
  // file that is not a lock.
  explicit FileLock(std::filesystem::path path);
  // Releases the lock and removes the file. Does nothing in a forked child.
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  [[nodiscard]] State state() const { return state_; }
  // Returns true if the held lock is known to exclude the processes of all hosts that can access
  // the file. Some filesystems can be mounted so that each host has its own locks.
  [[nodiscard]] bool reaches_everybody() const { return reaches_everybody_; }
  // Returns the holder of a busy lock ("process 71 on host a"), or the system's error if locks are
  // impossible.
  [[nodiscard]] const std::string& about() const { return about_; }

 private:
  // Tries to lock the file. Returns false if the last holder of the lock has removed the file
  // meanwhile.
  [[nodiscard]] bool try_once();
  void check_is_lock() const;
  void sign() const;

  std::filesystem::path path_;
  PrivateDescriptor file_;
  State state_ = State::busy;
  bool reaches_everybody_ = false;
  std::string about_;
};

}  // namespace lockstep::sys
