// What the ranks of one run find each other by: the agent's store, its secret, the port that rank 0 may use.
#pragma once

#include "sys/file_descriptor.h"

#include <string>

namespace lockstep::launch {

class MeetingPoint {
 public:
  // A fresh secret and name for this run.
  MeetingPoint();

  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  // A new descriptor for one rank to inherit, with a number that scripts do not use for their own.
  [[nodiscard]] sys::FileDescriptor secret_descriptor() const;

 private:
  std::string secret_;
  std::string run_id_;
};

// A TCP port that is free now on all addresses.
[[nodiscard]] int free_port();

}  // namespace lockstep::launch
