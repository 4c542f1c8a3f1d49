#include "comm/engines/mpi/call_query.h"

#include "base/format.h"
#include "comm/diagnose/report.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace lockstep::mpi {
namespace {

using diagnose::FailureKind;
using diagnose::PeerStatus;

constexpr char called = 'p';
constexpr char not_called = 'n';

diagnose::FailureReport difference(const CallQuery& query, const GroupNames& group, int other,
                                   const std::optional<CallRecord>& theirs) {
  return {FailureKind::mismatch,
          diagnose::mismatch_sentence(query.call, query.rank, theirs, other, group)};
}

PeerStatus status_of(const CallQuery& query, int rank) {
  PeerStatus status{.rank = rank};
  if (auto stopped = query.stopped.find(rank); stopped != query.stopped.end())
    status.stopped_process = stopped->second;
  auto answer = query.answers.find(rank);
  status.has_answered = answer != query.answers.end();
  if (!status.has_answered) return status;
  status.has_called = answer->second.has_called;
  status.last = answer->second.call;
  status.last_is_of_channel = answer->second.last > 0;
  return status;
}

}  // namespace

std::string written(const CallRecord& call, std::size_t most) {
  auto text = lockstep::written(call);
  if (text.size() <= most) return text;
  auto without_counts = call;
  without_counts.input_counts.clear();
  without_counts.output_counts.clear();
  return lockstep::written(without_counts).substr(0, most);
}

std::string written(const Answer& answer, std::size_t most) {
  auto text = formatted("{}{}", answer.has_called ? called : not_called, answer.last);
  if (!answer.call) return text;
  return formatted("{} {}", text, written(*answer.call, most - text.size() - 1));
}

Answer read_answer(std::uint64_t fingerprint, std::string_view text) {
  if (text.empty()) return {};
  Answer answer{.has_called = text.front() == called, .fingerprint = fingerprint};
  const auto blank = std::min(text.find(' '), text.size());
  std::from_chars(text.data() + 1, text.data() + blank, answer.last);
  if (blank < text.size()) answer.call = read_call(text.substr(blank + 1));
  return answer;
}

diagnose::FailureReport CallQuery::report(const GroupNames& group) const {
  for (const auto& [other, answer] : answers) {
    bool differs = answer.fingerprint != 0 && answer.fingerprint != fingerprint;
    if (differs || cause == Cause::difference) return difference(*this, group, other, answer.call);
  }
  if (cause == Cause::difference) return difference(*this, group, *asked.begin(), std::nullopt);
  std::vector<PeerStatus> peers{{.rank = rank, .has_called = true}};
  for (int other : asked) peers.push_back(status_of(*this, other));
  std::ranges::sort(peers, {}, &PeerStatus::rank);
  return {FailureKind::timeout, diagnose::overdue_sentence(call, peers, waited, group)};
}

}  // namespace lockstep::mpi
