#include "comm/diagnose/report.h"

#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::diagnose {
namespace {

constexpr std::string_view dead_group_words = ", which is dead: ";
constexpr std::string_view letters = "-PTMA";  // one per kind, in their order

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

}  // namespace

std::exception_ptr error_of(FailureKind kind, const std::string& text) {
  switch (kind) {
    case FailureKind::peer_lost:
      return std::make_exception_ptr(PeerLost(text));
    case FailureKind::timeout:
      return std::make_exception_ptr(Timeout(text));
    case FailureKind::mismatch:
      return std::make_exception_ptr(Mismatch(text));
    default:
      return std::make_exception_ptr(Aborted(text));
  }
}

FailureKind kind_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost&) {
    return FailureKind::peer_lost;
  } catch (const Timeout&) {
    return FailureKind::timeout;
  } catch (const Mismatch&) {
    return FailureKind::mismatch;
  } catch (...) {
    return FailureKind::aborted;
  }
}

std::string FailureReport::written() const {
  return letters[static_cast<std::size_t>(kind)] + text;
}

FailureReport FailureReport::read(std::string_view text) {
  if (text.empty()) return {};
  auto letter = letters.find(text.front());
  bool is_known = letter != std::string_view::npos && letter > 0;
  return {is_known ? static_cast<FailureKind>(letter) : FailureKind::aborted,
          std::string(text.substr(1))};
}

std::string_view cause_in(std::string_view text) {
  auto begin = text.find(dead_group_words);
  return begin == std::string_view::npos ? text : text.substr(begin + dead_group_words.size());
}

void Failure::set(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
}

void Failure::rethrow_if_any() const {
  if (error_) std::rethrow_exception(error_);
}

void Failure::refuse_if_any(std::string_view call, std::string_view group) const {
  if (!error_) return;
  auto text = formatted("{} on group {}{}{}", call, group, dead_group_words, text_of(error_));
  std::rethrow_exception(error_of(kind_of(error_), text));
}

namespace {

using Peers = std::vector<const PeerStatus*>;

Peers those(const Peers& peers, const std::function<bool(const PeerStatus&)>& condition) {
  Peers found;
  std::ranges::copy_if(peers, std::back_inserter(found),
                       [&](const PeerStatus* peer) { return condition(*peer); });
  return found;
}

std::vector<int> ranks_of(const Peers& peers) {
  std::vector<int> ranks;
  for (const auto* peer : peers) ranks.push_back(peer->rank);
  return ranks;
}

// For example "its", "it", "has", or "their", "they", "have", or "rank 2's", "rank 2", "has".
struct Pronouns {
  std::string whose = "its";
  std::string who = "it";
  std::string has = "has";
};

std::string words_of_call(const PeerStatus& peer, const Pronouns& words, const GroupNames& group) {
  const auto it_has = formatted("{} {}", words.who, words.has);
  if (!peer.last && peer.unmet)
    return formatted("{} called {}, which its peer has not matched", it_has,
                     describe(*peer.unmet, group));
  if (!peer.last) return formatted("{} made no call yet", it_has);
  const auto last = describe_fully(*peer.last, group);
  if (!peer.last_is_of_channel) return formatted("{} called {}", it_has, last);
  auto text = peer.may_have_called_more
                  ? formatted("the last call {} reported was {}", words.who, last)
                  : formatted("{} last call was {}", words.whose, last);
  if (!peer.unmet) return text;
  return formatted("{}; {} called {}, which its peer has not matched", text, it_has,
                   describe(*peer.unmet, group));
}

// Describes the last call of one rank, of several ranks with equal calls, or of the first few
// ranks.
std::string words_of_last_calls(const Peers& peers, const GroupNames& group) {
  constexpr std::size_t most = 3;
  const auto& first = *peers.front();
  auto alike = std::ranges::all_of(peers, [&](const PeerStatus* peer) {
    return words_of_call(*peer, {}, group) == words_of_call(first, {}, group);
  });
  if (peers.size() == 1) return words_of_call(first, {}, group);
  if (alike) return words_of_call(first, {"their", "they", "have"}, group);
  std::string text;
  for (std::size_t i = 0; i < std::min(most, peers.size()); ++i) {
    if (i > 0) text += "; ";
    const int rank = peers[i]->rank;
    text += words_of_call(*peers[i], {group.ranks_own(rank), group.rank(rank), "has"}, group);
  }
  return text;
}

std::string words_of_stopped(const Peers& peers, const GroupNames& group) {
  std::string text;
  for (const auto* peer : peers) {
    if (peer->stopped_process.empty()) continue;
    auto whose = peers.size() == 1 ? std::string("its") : group.ranks_own(peer->rank);
    text += formatted("; {} process {} is stopped", whose, peer->stopped_process);
  }
  return text;
}

std::string words_of_behind(const Peers& peers, const GroupNames& group) {
  if (peers.empty()) return {};
  return formatted("; {} {} behind, too", group.ranks(ranks_of(peers)),
                   peers.size() == 1 ? "is" : "are");
}

Peers without(const Peers& peers, const Peers& taken) {
  return those(peers, [&](const PeerStatus& peer) {
    return std::ranges::find(taken, &peer) == taken.end();
  });
}

// "ranks 0, 2 wait in"
std::string words_of_waiting(std::span<const int> ranks, const GroupNames& group) {
  return formatted("{} {} in", group.ranks(ranks), ranks.size() == 1 ? "waits" : "wait");
}

std::string nobody_is_missing(const CallRecord& call, const Peers& peers, const GroupNames& group) {
  auto executing = those(peers, [](const auto& peer) { return peer.is_executing; });
  if (!executing.empty())
    return formatted("{} began a part of {} and did not finish it",
                     group.ranks(ranks_of(executing)), describe(call, group));
  auto stopped = those(peers, [](const auto& peer) { return !peer.stopped_process.empty(); });
  auto text = formatted("all ranks called {}, but it is not complete", describe(call, group));
  return stopped.size() == 1
             ? formatted("{}; {} process {} is stopped", text,
                         group.ranks_own(stopped.front()->rank), stopped.front()->stopped_process)
             : text + words_of_stopped(stopped, group);
}

// Says which call `behind` should have made next and which of `missing` wait in it. Empty unless
// one of `missing` has reported that call.
std::string due_before(const Peers& behind, const Peers& missing, const CallRecord& call,
                       const GroupNames& group) {
  const auto number = behind.front()->last_number() + 1;
  auto waiting = those(missing, [&](const auto& peer) { return peer.last_number() == number; });
  if (waiting.empty() || number >= call.number) return {};
  return formatted("{} never called {} that {}", group.ranks(ranks_of(behind)),
                   describe_due(*waiting.front()->last, group),
                   words_of_waiting(ranks_of(waiting), group));
}

std::string somebody_is_missing(const CallRecord& call, const Peers& missing,
                                const std::vector<int>& waiting, const GroupNames& group) {
  // Prefer stopped processes: they may have made more calls than they could publish.
  auto candidates = those(missing, [](const auto& peer) { return !peer.stopped_process.empty(); });
  if (candidates.empty()) candidates = missing;
  auto least = std::ranges::min(candidates, {}, &PeerStatus::last_number)->last_number();
  auto behind = those(candidates, [&](const auto& peer) { return peer.last_number() == least; });
  auto text = due_before(behind, missing, call, group);
  bool is_earlier = !text.empty();
  if (!is_earlier)
    text = formatted("{} never called {} that {}", group.ranks(ranks_of(behind)),
                     describe_due(call, group), words_of_waiting(waiting, group));
  text += "; " + words_of_last_calls(behind, group) + words_of_stopped(behind, group);
  if (!is_earlier) text += words_of_behind(without(missing, behind), group);
  return text;
}

std::string words_of_leaving(bool by_exception) {
  return by_exception ? "it left because of an exception" : "it left in order";
}

std::string words_of_leaving(const LostRank& lost, const GroupNames& group) {
  auto text = words_of_leaving(lost.by_exception);
  if (!lost.call) return text;
  return formatted("{} without taking part in {} that {}", text, describe(*lost.call, group),
                   words_of_waiting(lost.waiting, group));
}

std::string words_of_end(const LostRank& lost) {
  if (!lost.how.empty()) return lost.how;
  if (lost.ended_process->empty()) return "its process ended without leaving";
  return formatted("its process {} ended without leaving", *lost.ended_process);
}

}  // namespace

std::string overdue_sentence(const CallRecord& call, std::span<const PeerStatus> statuses,
                             Duration waited, const GroupNames& group) {
  Peers peers;
  for (const auto& status : statuses) peers.push_back(&status);
  auto missing = those(peers, [](const auto& peer) { return !peer.has_called; });
  auto waiting = ranks_of(without(peers, missing));
  auto text = missing.empty() ? nobody_is_missing(call, peers, group)
                              : somebody_is_missing(call, missing, waiting, group);
  return formatted("after {}: {}{}", format_duration(waited), text, group.ending());
}

std::string lost_sentence(const LostRank& lost, const GroupNames& group) {
  const bool has_left = lost.how.empty() && !lost.ended_process;
  auto text = has_left ? words_of_leaving(lost, group) : words_of_end(lost);
  if (lost.status) text += "; " + words_of_call(*lost.status, {}, group);
  if (!lost.also_lost.empty())
    text += formatted("; so {} {}", lost.also_lost.size() == 1 ? "was" : "were",
                      group.ranks(lost.also_lost));
  if (!has_left && lost.call && !lost.waiting.empty())
    text +=
        formatted("; {} {}", words_of_waiting(lost.waiting, group), describe(*lost.call, group));
  return formatted("{} of {} was lost: {}{}", group.rank(lost.rank), lost.size, text,
                   group.ending());
}

std::string gone_sentence(const CallRecord& call, std::span<const int> silent,
                          std::span<const int> waiting, std::string_view how,
                          const GroupNames& group) {
  return formatted("{} is gone from {} that {}: {}{}",
                   silent.empty() ? std::string("a peer") : group.ranks(silent),
                   describe(call, group), words_of_waiting(waiting, group), how, group.ending());
}

std::string words_of_incomplete(const CallRecord& call, Duration waited, const GroupNames& group) {
  return formatted("after {}: {} is not complete", format_duration(waited), describe(call, group));
}

std::string words_of_trouble(const CallRecord& call, std::string_view what,
                             const GroupNames& group) {
  return formatted("{}: {}", describe(call, group), what);
}

std::string words_of_difference(const CallRecord& call, int rank, const GroupNames& group) {
  return formatted("{} called {} where another rank called something else", group.rank(rank),
                   describe_fully(call, group));
}

std::string words_of_abort(int rank, std::string_view reason, const GroupNames& group) {
  return formatted("{} ended the group: {}", group.rank(rank), reason);
}

std::string undiagnosed_sentence(std::string_view what, std::string_view problem,
                                 const GroupNames& group) {
  return formatted("{} (no further diagnosis: store error: {}){}", what, problem, group.ending());
}

std::string mismatch_sentence(const CallRecord& call, int rank,
                              const std::optional<CallRecord>& other, int other_rank,
                              const GroupNames& group) {
  auto text =
      other ? describe_difference(call, rank, *other, other_rank, group)
            : formatted("{} called {} where {} made another call and did not say which",
                        group.rank(rank), describe_fully(call, group), group.rank(other_rank));
  return text + group.ending();
}

std::string execution_sentence(int rank, const CallRecord& call, std::string_view why,
                               const GroupNames& group) {
  return formatted("{} could not execute its part of {}: {}{}", group.rank(rank),
                   describe(call, group), why, group.ending());
}

std::string untold_sentence(const GroupNames& group) {
  return "the group died, and the rank that noticed could not report why" + group.ending();
}

std::string late_sentence(const CallRecord& call, std::span<const int> late, Duration waited,
                          const GroupNames& group) {
  return formatted("after {}: {} posted small operations before {} and did not carry them out{}",
                   format_duration(waited), group.ranks(late), describe(call, group),
                   group.ending());
}

std::string unread_sentence(std::span<const int> slow, int posted, int rank, Duration waited,
                            const GroupNames& group) {
  return formatted(
      "after {}: {} posted {} operations without ever checking on the first of them; {} waits to "
      "post the next{}",
      format_duration(waited), group.ranks(slow), posted, group.rank(rank), group.ending());
}

std::string words_of_early_end(std::uint64_t number, int waiting, bool by_exception,
                               const GroupNames& group) {
  return formatted("{} before operation #{}, which {} waits to post",
                   words_of_leaving(by_exception), number, group.rank(waiting));
}

std::string words_of_writer(int rank, const CallRecord& call, std::string_view why,
                            const GroupNames& group) {
  return formatted("; {} is in {} and may still write to its output: {}", group.rank(rank),
                   describe(call, group), why);
}

std::string aborted_sentence(int rank, std::string_view reason, const GroupNames& group) {
  return words_of_abort(rank, reason, group) + group.ending();
}

}  // namespace lockstep::diagnose
