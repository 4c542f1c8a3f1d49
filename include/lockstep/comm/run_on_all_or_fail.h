// Actions that must succeed on all ranks, or fail on all: reading data, opening folders, saving.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include <functional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// Thrown on all ranks with the same message if a step of the program failed on some rank, so that
// one rank may print it for all. The group stays usable.
class CollectiveFailure : public Error {
 public:
  CollectiveFailure(const std::string& what, int rank) : Error(what), rank_(rank) {}
  // The first rank that failed.
  [[nodiscard]] int rank() const { return rank_; }

 private:
  int rank_;
};

// Collective. Runs `action` on this rank and returns when it has succeeded on all ranks. If
// `action` threw a std::exception on some ranks, throws CollectiveFailure on every rank, with the
// message of the first rank that failed. If other ranks succeeded, the message begins with "rank 2
// on host b: ", because a file may be missing on one host only. `action` must not use the group.
// Throws the group's errors.
void run_on_all_or_fail(Group& group, const std::function<void()>& action);

// Collective. Returns the text that `root` passes; the texts of other ranks are ignored. Throws the
// group's errors.
[[nodiscard]] std::string broadcast_text(Group& group, std::string text, int root = 0);

}  // namespace lockstep

#pragma GCC visibility pop
