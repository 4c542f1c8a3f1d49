// How the ranks of a failed group agree on the cause: the first rank that notices becomes the
// reporter, reads the statements of all ranks from the call watch, and writes the failure report
// that all ranks throw. The other ranks notice when the reporter closes its connections, or at
// their next call.
//
// Keys, under "lockstep/end/<group>/": "reporter", the rank that writes the report; "report", a
// letter for the kind of error and its text.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "comm/call/record.h"
#include "comm/diagnose/report.h"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::diagnose {

// Agrees with the other ranks on the cause of a failure. Copies of an object stand for the same
// rank of the same group.
class Diagnosis {
 public:
  // `store_timeout`: the time limit of all store operations of one agreement.
  Diagnosis(std::shared_ptr<Store> store, GroupNames group, int rank, int size,
            Duration store_timeout = std::chrono::seconds(5));

  // Returns the error that all ranks of the group throw. `kind` is the failure that this rank
  // noticed in `call`; `close` ends this rank's connections. `detail` is the backend's error text,
  // the sentence of a mismatch, or the reason of an abort. Blocks for a second or two, and a few
  // more if the store does not answer; never throws. If memory for the message runs out, returns an
  // error that says so.
  [[nodiscard]] std::exception_ptr agree(FailureKind kind, const CallRecord& call,
                                         std::string_view detail,
                                         const std::function<void()>& close) noexcept;

  // Returns "rank 3 never called all_reduce #417 (bucket 2, 12 MiB, train.cc:88) that ranks 0-2
  // wait in; its last call was ...", as far as is known now; empty if memory runs out. Blocks at
  // most `store_timeout`; never throws.
  [[nodiscard]] std::string overdue(const CallRecord& call, Duration waited) noexcept;

  // Returns the sentence of a mismatch with the call of rank `other`; without `other`, with the
  // call of any rank that made a different call. Empty if there is no mismatch. Blocks at most
  // `store_timeout`; never throws.
  [[nodiscard]] std::string difference(const CallRecord& call,
                                       std::optional<int> other = std::nullopt) noexcept;

 private:
  struct Survey;
  using Say = std::string(Diagnosis&);
  // Returns the result of `say`; if the store fails, returns the result of `otherwise` and the
  // store's error. Throws std::bad_alloc.
  [[nodiscard]] std::string said_in_time(const std::function<std::string()>& otherwise,
                                         std::function<Say> say);
  // Returns the report that this rank can make without the store.
  [[nodiscard]] FailureReport alone(FailureKind kind, const CallRecord& call,
                                    std::string_view detail, std::string_view problem) const;
  [[nodiscard]] FailureReport read_or_write_report(FailureKind kind, const CallRecord& call,
                                                   std::string_view detail,
                                                   const std::function<void()>& close);
  [[nodiscard]] FailureReport report(FailureKind kind, const CallRecord& call,
                                     std::string_view detail);
  // Reads statements until all ranks have made the call or cannot make it any more, or the limit
  // passes.
  [[nodiscard]] Survey survey(const CallRecord& call, Duration limit);
  [[nodiscard]] std::string difference_in(const Survey& survey, const CallRecord& call) const;
  [[nodiscard]] std::string lost_in(const Survey& survey, const CallRecord& call,
                                    std::string_view detail) const;
  [[nodiscard]] std::string key(std::string_view name) const;

  std::shared_ptr<Store> store_;
  GroupNames group_;
  int rank_;
  int size_;
  Duration store_timeout_;
};

}  // namespace lockstep::diagnose
