// How the ranks of a dying group agree on why: the first that notices becomes the judge, reads what
// all have said to the watch, and writes the verdict that all throw. Ranks notice when the judge
// closes its connections, or with their next call.
//
// Keys, under "lockstep/end/<group>/": "judge" the rank that writes the verdict; "verdict" a letter
// for the kind of error and its text.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "comm/backend/posted_call.h"
#include "comm/diagnose/history.h"
#include "comm/diagnose/verdict.h"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::watch {

// What this rank noticed.
enum class End { lost, timeout, mismatch, aborted };

class LastWords {
 public:
  // `patience`: how long the store may take for all of one agreement.
  LastWords(std::shared_ptr<Store> store, std::string group, int rank, int size,
            Duration patience = std::chrono::seconds(5));
  // A copy speaks for the same rank of the same group.

  // The error that all ranks of the group throw. `close` ends this rank's connections. `detail` is
  // what the engine said, the sentence of a mismatch, or the reason of an abort. Takes a second or
  // two, and a few more where the store does not answer; never throws.
  [[nodiscard]] std::exception_ptr agree(End end, const PostedCall& call, std::string_view detail,
                                         const std::function<void()>& close) noexcept;

  // "rank 3 never called all_reduce #417 (bucket 2, 12 MB) that ranks 0-2 wait in; its last call
  // was ...", as far as is known now. Never throws.
  [[nodiscard]] std::string overdue(const PostedCall& call, Duration waited) noexcept;

  // The sentence of a mismatch with what rank `other` called; without one, with any rank that
  // called something else, and empty when none has. Never throws.
  [[nodiscard]] std::string difference(const PostedCall& call,
                                       std::optional<int> other = std::nullopt) noexcept;

 private:
  struct Hearing;
  // What `say` says, or why it cannot.
  [[nodiscard]] std::string said_aside(const PostedCall& call,
                                       std::function<std::string(LastWords&)> say) noexcept;
  [[nodiscard]] std::exception_ptr agree_now(End end, const PostedCall& call,
                                             std::string_view detail,
                                             const std::function<void()>& close) noexcept;
  // What can be said without the store.
  [[nodiscard]] std::exception_ptr alone(End end, const PostedCall& call, std::string_view detail,
                                         std::string_view problem) const;
  [[nodiscard]] Verdict judge(End end, const PostedCall& call, std::string_view detail);
  [[nodiscard]] Verdict read_or_judge(End end, const PostedCall& call, std::string_view detail,
                                      const std::function<void()>& close);
  // Reads until all have said that they made the call, or cannot any more, or the deadline has
  // passed.
  [[nodiscard]] Hearing hear(const PostedCall& call, Duration patience);
  [[nodiscard]] std::string difference_in(const Hearing& hearing, const PostedCall& call) const;
  [[nodiscard]] Verdict judge_loss(const Hearing& hearing, const PostedCall& call,
                                   std::string_view detail) const;
  [[nodiscard]] std::string key(std::string_view name) const;
  [[nodiscard]] std::string of_group() const;

  std::shared_ptr<Store> store_;
  std::string group_;
  int rank_;
  int size_;
  Duration patience_;
};

}  // namespace lockstep::watch
