// Aftermath: what a process does about a group that has died before it tells its callers, so that
// they may use their tensors again.
//
// A peer that executes a segment when the group dies finishes it, and writes into tensors of this
// rank. So each rank that learns of the failure stops, waits until no process executes anything of
// the group, and only then throws. A process that is stopped itself may finish its segment at any
// later time: what it writes to gets fresh memory, and the memory that it had is never used again.
#pragma once

#include "comm/engines/shm/channel.h"

#include <string>
#include <vector>

namespace lockstep::shm {

class Endpoint;
class Group;

class Aftermath {
 public:
  Aftermath(Endpoint& endpoint, Group& group) : endpoint_(endpoint), group_(group) {}

  // From when it returns nothing is written any more to what callers passed to this group, by
  // whomever, apart from what the returned text names (" ..." or nothing). Blocks for a bounded
  // time. Once a group, from a thread that executes nothing.
  [[nodiscard]] std::string settle();

 private:
  struct Writer {
    int number;  // in the group
    std::uint64_t word;
  };
  // Marks of the group's operations, of processes that have not ended.
  [[nodiscard]] std::vector<Writer> writers() const;
  [[nodiscard]] std::vector<Writer> wait_for_writers() const;
  // Empty, or why what that operation writes to cannot be renewed.
  [[nodiscard]] std::string renew(Operation& operation) const;

  Endpoint& endpoint_;
  Group& group_;
};

}  // namespace lockstep::shm
