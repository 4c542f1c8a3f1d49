// FailureKind lists every reason a group can fail; error_of() returns the matching exception.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace lockstep::diagnose {

enum class FailureKind : std::uint32_t { none, peer_lost, timeout, mismatch, aborted };

// Returns PeerLost, Timeout or Mismatch, or else Aborted.
[[nodiscard]] std::exception_ptr error_of(FailureKind kind, const std::string& text);
[[nodiscard]] FailureKind kind_of(const std::exception_ptr& error);

// The failure that one rank determined and all ranks of the group throw.
struct FailureReport {
  FailureKind kind = FailureKind::aborted;
  std::string text;

  [[nodiscard]] std::exception_ptr error() const { return error_of(kind, text); }
  // Returns the text for other ranks: a letter for the kind, then the message.
  [[nodiscard]] std::string written() const;
  [[nodiscard]] static FailureReport read(std::string_view text);
};

// The error that ended a group: the first error is kept, and every later call throws it again. Not
// synchronised.
class Failure {
 public:
  [[nodiscard]] explicit operator bool() const { return error_ != nullptr; }
  // Stores `error` unless there is one already.
  void set(std::exception_ptr error);

  // Throws the error; for a wait that the error interrupted.
  void rethrow_if_any() const;
  // Throws the same kind of error with a text that says the group was dead before; for later calls.
  void refuse_if_any(std::string_view call, std::string_view group) const;

 private:
  std::exception_ptr error_;
};

// Returns the cause of death from the text of a later call's error; any other text unchanged.
[[nodiscard]] std::string_view cause_in(std::string_view text);

}  // namespace lockstep::diagnose
