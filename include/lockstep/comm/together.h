// What must succeed on every rank or counts for none: reading data, opening folders, saving.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include <functional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// A step of the program failed on some rank, and every rank knows: all of them throw this with the
// same words, so that one of them may speak for all. The group lives on.
class CommonFailure : public Error {
 public:
  CommonFailure(const std::string& what, int rank) : Error(what), rank_(rank) {}
  // The first rank that failed.
  [[nodiscard]] int rank() const { return rank_; }

 private:
  int rank_;
};

// Collective. Runs `action` on this rank and returns when it has succeeded on all; if it threw a
// std::exception on some, throws CommonFailure with the words of the first of them on every rank,
// after "rank 2 on host b: " where it went well on others: a file may be missing on one host alone.
// `action` itself must not use the group. Throws the group's errors.
void together(Group& group, const std::function<void()>& action);

// Collective. The text that `root` passes; what the others pass is not looked at. Throws the
// group's errors.
[[nodiscard]] std::string broadcast_text(Group& group, std::string text, int root = 0);

}  // namespace lockstep

#pragma GCC visibility pop
