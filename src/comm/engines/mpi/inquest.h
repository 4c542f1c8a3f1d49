// Finding out why a call does not go on: the other ranks are asked what they have posted, and from
// their answers comes one sentence, the same on every rank that asked.
#pragma once

#include "comm/backend/posted_call.h"
#include "comm/diagnose/verdict.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace lockstep::mpi {

// What a rank says about call `number` of a route.
struct Answer {
  enum class State : char { not_posted = 'n', posted = 'p' };
  State state = State::not_posted;
  std::uint64_t fingerprint = 0;  // of that call; 0 when it is too long ago to be known
  std::uint64_t last = 0;         // the number of the rank's last call of that route
  std::string text;               // that call fully, or the rank's last one
};
[[nodiscard]] std::string written(const Answer& answer);
[[nodiscard]] Answer read_answer(std::uint64_t fingerprint, std::string_view text);

struct Inquest {
  enum class Cause { difference, deadline, notice };
  Cause cause = Cause::deadline;
  PostedCall call;  // of this rank, without tensors
  std::uint64_t fingerprint = 0;
  int rank = 0;  // this one
  Duration waited{};
  std::set<int> asked;
  std::map<int, Answer> answers;
  std::map<int, int> stopped;  // ranks that did not answer, by their processes, which are stopped

  [[nodiscard]] bool is_complete() const { return answers.size() == asked.size(); }
};

[[nodiscard]] Verdict judge(const Inquest& inquest, std::string_view group);

}  // namespace lockstep::mpi
