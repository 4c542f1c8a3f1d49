// The errors that Lockstep throws. Every message is one line: the operation, the rank or peer, what
// was expected and what was found. After PeerLost, Timeout, Mismatch or Aborted the group is dead:
// each later call on it throws again, and the buffers of the operation are undefined. A new group
// can be made. InvalidArgument and BadInput are thrown before anything is sent: the group stays
// usable and nothing has changed.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// The base class of all errors of Lockstep.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A rank ended (killed, crashed, or left in order) while other ranks still needed it.
class PeerLost : public Error {
  using Error::Error;
};

// A deadline passed. The text names the ranks that were waited for, and what each called last.
class Timeout : public Error {
  using Error::Error;
};

// Two ranks made different calls where they must make the same one. The text names both calls and
// their places in the source.
class Mismatch : public Error {
  using Error::Error;
};

// The group was ended on purpose, or died of an earlier error.
class Aborted : public Error {
  using Error::Error;
};

// The caller passed something that is never valid: a negative root, a tensor of the wrong size.
class InvalidArgument : public Error {
  using Error::Error;
};

// Something from outside the program is wrong: a file, an environment variable, an option, a peer
// without the secret.
class BadInput : public Error {
  using Error::Error;
};

// A system call failed. The text ends with the system's own description (strerror).
class SystemError : public Error {
 public:
  SystemError(const std::string& what, int error_number);
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  int error_number_;
};

}  // namespace lockstep

#pragma GCC visibility pop
