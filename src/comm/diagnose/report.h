// The sentences of failure reports. Backends pass facts; this file words all errors and warnings
// about a group, equally for every backend (docs/reference/error_messages.md). Facts contain ranks
// of the group; the sentences add the world ranks.
#pragma once

#include <lockstep/base/deadline.h>

#include "comm/call/record.h"

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::diagnose {

// FailureKind lists every reason a group can fail; error_of() returns the matching exception.
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
  // Throws the same kind of error with the text that the group had failed before; for later calls.
  void refuse_if_any(std::string_view call, std::string_view group) const;

 private:
  std::exception_ptr error_;
};

// Returns the original failure from the text of a later call's error; returns any other text
// unchanged.
[[nodiscard]] std::string_view cause_in(std::string_view text);

// The state of one rank that an operation needs, as far as this rank knows it.
struct PeerStatus {
  int rank = 0;
  bool has_called = false;
  bool is_executing = false;  // it began a part of the operation and has not finished it
  // The latest call of this channel, or of any channel if this channel has none.
  std::optional<CallRecord> last = {};
  bool last_is_of_channel = true;
  bool may_have_called_more = false;     // it ended or stopped before publishing all
  std::optional<CallRecord> unmet = {};  // a message that its peer has not posted
  std::string stopped_process = {};      // the pid, if the process is stopped

  // The number of the latest call of this channel; 0 if it has no call yet.
  [[nodiscard]] std::uint64_t last_number() const {
    return last && last_is_of_channel ? last->number : 0;
  }
};

// after 1s: rank 3 never called all_reduce #417 (bucket 2, 12 MiB, train.cc:88) that ranks 0-2 wait
// in; its last call was ... Names the ranks that are furthest behind, because the others may wait
// for them.
[[nodiscard]] std::string overdue_sentence(const CallRecord& call,
                                           std::span<const PeerStatus> peers, Duration waited,
                                           const GroupNames& group);

// A rank that no longer takes part in an operation that other ranks wait for.
struct LostRank {
  int rank = 0;
  int size = 1;  // of the group
  // The pid of the rank's process, empty if unknown; std::nullopt if the rank left by itself.
  std::optional<std::string> ended_process = {};
  bool by_exception = false;              // it left while an exception unwound its stack
  std::string how = {};                   // replaces the text on how it was lost
  std::optional<PeerStatus> status = {};  // its last calls, if known
  std::optional<CallRecord> call = {};    // the call that others wait in
  std::vector<int> waiting = {};
  std::vector<int> also_lost = {};
};
// rank 1 of 3 was lost: its process 4711 ended without leaving; its last call was ...; ranks 0, 2
// wait in all_reduce #8 (...)
[[nodiscard]] std::string lost_sentence(const LostRank& lost, const GroupNames& group);
// For a lost connection to an unidentified rank. `silent`: the ranks that have not made the call.
[[nodiscard]] std::string gone_sentence(const CallRecord& call, std::span<const int> silent,
                                        std::span<const int> waiting, std::string_view how,
                                        const GroupNames& group);

// rank 0 called all_reduce #5 (...) where rank 1 called barrier #5 (a.cc:9). `other` is
// std::nullopt if that rank did not publish its call.
[[nodiscard]] std::string mismatch_sentence(const CallRecord& call, int rank,
                                            const std::optional<CallRecord>& other, int other_rank,
                                            const GroupNames& group);

// rank 2 could not execute its part of all_reduce #5 (...): WHY
[[nodiscard]] std::string execution_sentence(int rank, const CallRecord& call, std::string_view why,
                                             const GroupNames& group);

// Sentences for the case that the store has no more information, so that they describe only facts
// that this rank knows: an incomplete call, a call in which `what` happened, a call that differs
// from another rank's, an abort, or any other problem.
[[nodiscard]] std::string words_of_incomplete(const CallRecord& call, Duration waited,
                                              const GroupNames& group);
[[nodiscard]] std::string words_of_trouble(const CallRecord& call, std::string_view what,
                                           const GroupNames& group);
[[nodiscard]] std::string words_of_difference(const CallRecord& call, int rank,
                                              const GroupNames& group);
[[nodiscard]] std::string words_of_abort(int rank, std::string_view reason,
                                         const GroupNames& group);
[[nodiscard]] std::string undiagnosed_sentence(std::string_view what, std::string_view problem,
                                               const GroupNames& group);

// rank 1 ended the group: REASON
[[nodiscard]] std::string aborted_sentence(int rank, std::string_view reason,
                                           const GroupNames& group);

// Returns the sentence for a group that failed for an unknown reason.
[[nodiscard]] std::string untold_sentence(const GroupNames& group);

// For ranks that pass inputs in the slots of a ring (shm): the ranks `late` have posted small
// operations before `call` without executing them.
[[nodiscard]] std::string late_sentence(const CallRecord& call, std::span<const int> late,
                                        Duration waited, const GroupNames& group);
// The ranks `slow` have posted `posted` operations without reading the first of them, and `rank`
// waits to post the next operation.
[[nodiscard]] std::string unread_sentence(std::span<const int> slow, int posted, int rank,
                                          Duration waited, const GroupNames& group);
// A rank was lost before it posted operation `number`, which the rank `waiting` waits to post.
[[nodiscard]] std::string words_of_early_end(std::uint64_t number, int waiting, bool by_exception,
                                             const GroupNames& group);
// "; rank 1 is in all_reduce #7 (...) and may still write to its output: WHY".
[[nodiscard]] std::string words_of_writer(int rank, const CallRecord& call, std::string_view why,
                                          const GroupNames& group);

}  // namespace lockstep::diagnose
