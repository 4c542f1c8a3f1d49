// Why a group died: the one enumeration of causes, and the error that follows from it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace lockstep::diagnose {

enum class FailureKind : std::uint32_t { none, peer_lost, timeout, mismatch, aborted };

// PeerLost, Timeout, Mismatch, or else Aborted.
[[nodiscard]] std::exception_ptr error_of(FailureKind kind, const std::string& text);
[[nodiscard]] FailureKind kind_of(const std::exception_ptr& error);

// What one rank found out, and all ranks of the group then throw.
struct FailureReport {
  FailureKind kind = FailureKind::aborted;
  std::string text;

  [[nodiscard]] std::exception_ptr error() const { return error_of(kind, text); }
  // For other ranks: a letter for the kind, and the text.
  [[nodiscard]] std::string written() const;
  [[nodiscard]] static FailureReport read(std::string_view text);
};

// The error that ended a group: the first one stays, and every later call throws it again. Not
// synchronised by itself.
class Failure {
 public:
  [[nodiscard]] explicit operator bool() const { return error_ != nullptr; }
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

}  // namespace lockstep::diagnose
