// Finding out why a call does not go on: the other ranks are asked what they have called, and from
// their answers comes the failure report.
#pragma once

#include "comm/call/record.h"
#include "comm/diagnose/failure.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace lockstep::mpi {

// What a rank says about call `number` of a channel.
struct Answer {
  bool has_called = false;
  std::uint64_t fingerprint = 0;  // of that call; 0 when it is too long ago to be known
  std::uint64_t last = 0;         // the number of the rank's last call of that channel
  // That call, or else the rank's last one: of that channel, or of any where it has none.
  std::optional<CallRecord> call = {};
};
// `most`: in so many bytes; counts of parts are left out where they do not fit.
[[nodiscard]] std::string written(const Answer& answer, std::size_t most);
[[nodiscard]] Answer read_answer(std::uint64_t fingerprint, std::string_view text);
// A record in so many bytes.
[[nodiscard]] std::string written(const CallRecord& call, std::size_t most);

struct CallQuery {
  enum class Cause { difference, deadline, notice };
  Cause cause = Cause::deadline;
  CallRecord call;  // of this rank
  std::uint64_t fingerprint = 0;
  int rank = 0;  // this one
  Duration waited{};
  std::set<int> asked;
  std::map<int, Answer> answers;
  // Of ranks that did not answer, the processes that are stopped.
  std::map<int, std::string> stopped;

  [[nodiscard]] bool is_complete() const { return answers.size() == asked.size(); }
  [[nodiscard]] diagnose::FailureReport report(const GroupNames& group) const;
};

}  // namespace lockstep::mpi
