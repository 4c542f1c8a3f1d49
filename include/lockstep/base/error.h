// The errors that Lockstep throws. Every message is one line with the operation, the rank or peer,
// the expected value and the actual one. PeerLost, Timeout, Mismatch and Aborted mean that the
// group is dead: every later call on it throws again, and the buffers of the failed operation are
// undefined. A new group can be made. InvalidArgument and BadInput are thrown before any data is
// sent: the group stays usable and nothing has changed.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// The base class of all errors that Lockstep throws.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A rank ended (killed, crashed, or left in order) while other ranks still needed it.
class PeerLost : public Error {
  using Error::Error;
};

// A deadline passed. The message names the ranks that did not arrive, and the last call of each.
class Timeout : public Error {
  using Error::Error;
};

// Two ranks made different calls where both must make the same one. The message names both calls
// and their source locations.
class Mismatch : public Error {
  using Error::Error;
};

// The group was aborted on purpose, or died of an earlier error.
class Aborted : public Error {
  using Error::Error;
};

// The caller passed an argument that is never valid, such as a negative root or a tensor of the
// wrong size.
class InvalidArgument : public Error {
  using Error::Error;
};

// An input from outside the program is invalid: a file, an environment variable, an option, or a
// peer that does not have the secret.
class BadInput : public Error {
  using Error::Error;
};

// A system call failed. The message ends with the description from strerror().
class SystemError : public Error {
 public:
  SystemError(const std::string& what, int error_number);
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  int error_number_;
};

}  // namespace lockstep

#pragma GCC visibility pop
