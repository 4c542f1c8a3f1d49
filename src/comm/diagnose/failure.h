// The error that ended a group: the first one stays, and every later call throws it again. Not
// synchronised by itself.
#pragma once

#include <exception>
#include <string_view>

namespace lockstep {

class Failure {
 public:
  [[nodiscard]] explicit operator bool() const { return error_ != nullptr; }
  [[nodiscard]] std::exception_ptr error() const { return error_; }
  // Keeps `error` unless there is one already.
  void set(std::exception_ptr error);

  // What a wait does that the error interrupted.
  void rethrow_if_any() const;
  // What a later call does: the same kind of error, and a text that says that the group was dead
  // before.
  void refuse_if_any(std::string_view call, std::string_view group) const;

 private:
  std::exception_ptr error_;
};

// Of the text of a later call's error: what the group died of. Any other text as it is.
[[nodiscard]] std::string_view cause_in(std::string_view text);

}  // namespace lockstep
