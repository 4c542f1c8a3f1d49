// The errors that Lockstep throws. Every message is one line that says what was done, by whom, what
// was expected and what was found. After PeerLost, Timeout, Mismatch or Aborted the group is dead:
// each later call on it throws again, buffers of the operation are undefined, and a new group can
// be made. InvalidArgument and BadInput are found before anything was sent: the group lives on and
// nothing was changed.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

// The base of all of them: catch this to catch every failure of Lockstep's own.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A rank ended (killed, crashed, or left in order) while others still needed it.
class PeerLost : public Error {
  using Error::Error;
};

// A deadline passed. The text says who was waited for, and what that rank called last.
class Timeout : public Error {
  using Error::Error;
};

// Two ranks made different calls where the same one was due. The text names both calls and where
// they stand.
class Mismatch : public Error {
  using Error::Error;
};

// The group was ended on purpose, or died of an earlier error.
class Aborted : public Error {
  using Error::Error;
};

// A call that no state of the world would make right: a negative root, a tensor of the wrong size.
class InvalidArgument : public Error {
  using Error::Error;
};

// Something from outside is wrong: a file, an environment variable, an option, a peer without the
// secret.
class BadInput : public Error {
  using Error::Error;
};

// The operating system refused: the text ends with its own words (strerror).
class SystemError : public Error {
 public:
  SystemError(const std::string& what, int error_number);
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  int error_number_;
};

}  // namespace lockstep
