#include "comm/diagnose/report.h"

#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <functional>

namespace lockstep::diagnose {
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

// "its", "it", "has"; "their", "they", "have"; "rank 2's", "rank 2", "has".
struct Pronouns {
  std::string whose = "its";
  std::string who = "it";
  std::string has = "has";
};

std::string words_of_call(const PeerStatus& peer, const Pronouns& words) {
  const auto it_has = formatted("{} {}", words.who, words.has);
  if (!peer.last && peer.unmet)
    return formatted("{} called {}, which its peer has not met", it_has, describe(*peer.unmet));
  if (!peer.last) return formatted("{} made no call yet", it_has);
  const auto last = describe_fully(*peer.last);
  if (!peer.last_is_of_channel) return formatted("{} called {}", it_has, last);
  auto text = peer.may_have_called_more
                  ? formatted("the last call {} told of was {}", words.who, last)
                  : formatted("{} last call was {}", words.whose, last);
  if (!peer.unmet) return text;
  return formatted("{}; {} called {}, which its peer has not met", text, it_has,
                   describe(*peer.unmet));
}

// Of one rank, of several that are in the same place, or of the first few of them.
std::string words_of_last_calls(const Peers& peers) {
  constexpr std::size_t most = 3;
  const auto& first = *peers.front();
  auto alike = std::ranges::all_of(peers, [&](const PeerStatus* peer) {
    return words_of_last_call(*peer) == words_of_last_call(first);
  });
  if (peers.size() == 1) return words_of_last_call(first);
  if (alike) return words_of_call(first, {"their", "they", "have"});
  std::string text;
  for (std::size_t i = 0; i < std::min(most, peers.size()); ++i) {
    if (i > 0) text += "; ";
    auto name = formatted("rank {}", peers[i]->rank);
    text += words_of_call(*peers[i], {name + "'s", name, "has"});
  }
  return text;
}

std::string words_of_stopped(const Peers& peers) {
  std::string text;
  for (const auto* peer : peers) {
    if (peer->stopped_process.empty()) continue;
    auto whose = peers.size() == 1 ? std::string("its") : formatted("rank {}'s", peer->rank);
    text += formatted("; {} process {} is stopped", whose, peer->stopped_process);
  }
  return text;
}

std::string words_about(const Peers& peers, std::string_view one, std::string_view several) {
  if (peers.empty()) return {};
  return formatted("; {} {}", rank_list(ranks_of(peers)), peers.size() == 1 ? one : several);
}

Peers without(const Peers& peers, const Peers& taken) {
  return those(peers, [&](const PeerStatus& peer) {
    return std::ranges::find(taken, &peer) == taken.end();
  });
}

std::string nobody_is_missing(const CallRecord& call, const Peers& peers) {
  auto executing = those(peers, [](const auto& peer) { return peer.is_executing; });
  if (!executing.empty())
    return formatted("{} began a part of {} and did not finish it", rank_list(ranks_of(executing)),
                     describe(call));
  auto stopped = those(peers, [](const auto& peer) { return !peer.stopped_process.empty(); });
  auto text = formatted("all ranks called {}, but it is not complete", describe(call));
  return stopped.size() == 1 ? formatted("{}; rank {}'s process {} is stopped", text,
                                         stopped.front()->rank, stopped.front()->stopped_process)
                             : text + words_of_stopped(stopped);
}

// What `behind` should have called next, and those of `missing` that wait in it, when one of them
// has said which call that is.
std::string due_before(const Peers& behind, const Peers& missing, const CallRecord& call) {
  const auto number = behind.front()->last_number() + 1;
  auto waiting = those(missing, [&](const auto& peer) { return peer.last_number() == number; });
  if (waiting.empty() || number >= call.number) return {};
  return formatted("{} never called {} that {}", rank_list(ranks_of(behind)),
                   describe_due(*waiting.front()->last), words_of_waiting(ranks_of(waiting)));
}

std::string somebody_is_missing(const CallRecord& call, const Peers& missing,
                                const std::vector<int>& waiting) {
  auto is_stopped = [](const PeerStatus& peer) { return !peer.stopped_process.empty(); };
  auto silent = those(missing, [](const auto& peer) { return !peer.has_answered; });
  auto stopped = those(missing, is_stopped);
  auto answered = without(missing, silent);
  // What the others lack may well be the call of a rank that is stopped.
  if (!stopped.empty() && !stopped.front()->has_answered) answered.clear();
  if (answered.empty()) {
    const auto& named = stopped.empty() ? silent : stopped;
    return formatted("{} did not answer, and {} needed for {} that {}{}{}",
                     rank_list(ranks_of(named)), named.size() == 1 ? "is" : "are",
                     describe_due(call), words_of_waiting(waiting), words_of_stopped(stopped),
                     stopped.empty()
                         ? ""
                         : words_about(without(silent, named), "did not answer", "did not answer"));
  }
  // A stopped process may not even have told how far it came.
  auto candidates = those(answered, is_stopped);
  if (candidates.empty()) candidates = answered;
  auto least = std::ranges::min(candidates, {}, &PeerStatus::last_number)->last_number();
  auto behind = those(candidates, [&](const auto& peer) { return peer.last_number() == least; });
  auto text = due_before(behind, answered, call);
  bool is_earlier = !text.empty();
  if (!is_earlier)
    text = formatted("{} never called {} that {}", rank_list(ranks_of(behind)), describe_due(call),
                     words_of_waiting(waiting));
  text += "; " + words_of_last_calls(behind) + words_of_stopped(behind);
  if (!is_earlier)
    text += words_about(without(answered, behind), "is behind, too", "are behind, too");
  return text + words_about(silent, "did not answer", "did not answer");
}

std::string words_of_leaving(const LostRank& lost) {
  if (!lost.call) return "it left in order";
  return formatted("it left in order without taking part in {} that {}", describe(*lost.call),
                   words_of_waiting(lost.waiting));
}

std::string words_of_end(const LostRank& lost) {
  if (!lost.how.empty()) return lost.how;
  if (lost.ended_process->empty()) return "its process ended without leaving";
  return formatted("its process {} ended without leaving", *lost.ended_process);
}

}  // namespace

std::string words_of_group(std::string_view group) {
  return group == "world" ? std::string() : formatted(" [group {}]", group);
}

std::string words_of_waiting(std::span<const int> ranks) {
  return formatted("{} {} in", rank_list(ranks), ranks.size() == 1 ? "waits" : "wait");
}

std::string words_of_last_call(const PeerStatus& peer) { return words_of_call(peer, {}); }

std::string overdue_sentence(const CallRecord& call, std::span<const PeerStatus> statuses,
                             Duration waited, std::string_view group) {
  Peers peers;
  for (const auto& status : statuses) peers.push_back(&status);
  auto missing = those(peers, [](const auto& peer) { return !peer.has_called; });
  auto waiting = ranks_of(without(peers, missing));
  auto text = missing.empty() ? nobody_is_missing(call, peers)
                              : somebody_is_missing(call, missing, waiting);
  return formatted("after {}: {}{}", format_duration(waited), text, words_of_group(group));
}

std::string lost_sentence(const LostRank& lost, std::string_view group) {
  const bool in_order = lost.how.empty() && !lost.ended_process;
  auto text = in_order ? words_of_leaving(lost) : words_of_end(lost);
  if (lost.status) text += "; " + words_of_last_call(*lost.status);
  if (!lost.also_lost.empty())
    text += formatted("; so {} {}", lost.also_lost.size() == 1 ? "was" : "were",
                      rank_list(lost.also_lost));
  if (!in_order && lost.call && !lost.waiting.empty())
    text += formatted("; {} {}", words_of_waiting(lost.waiting), describe(*lost.call));
  auto in_world = lost.world_rank.value_or(lost.rank) == lost.rank
                      ? std::string()
                      : formatted(" (rank {} of the world)", *lost.world_rank);
  return formatted("rank {}{} of {} was lost: {}{}", lost.rank, in_world, lost.size, text,
                   words_of_group(group));
}

std::string gone_sentence(const CallRecord& call, std::span<const int> silent,
                          std::span<const int> waiting, std::string_view how,
                          std::string_view group) {
  return formatted("{} is gone from {} that {}: {}{}",
                   silent.empty() ? std::string("a peer") : rank_list(silent), describe(call),
                   words_of_waiting(waiting), how, words_of_group(group));
}

std::string words_of_incomplete(const CallRecord& call, Duration waited) {
  return formatted("after {}: {} is not complete", format_duration(waited), describe(call));
}

std::string words_of_trouble(const CallRecord& call, std::string_view what) {
  return formatted("{}: {}", describe(call), what);
}

std::string words_of_difference(const CallRecord& call, int rank) {
  return formatted("rank {} called {} where another rank called something else", rank,
                   describe_fully(call));
}

std::string undiagnosed_sentence(std::string_view what, std::string_view problem,
                                 std::string_view group) {
  return formatted("{} (no further diagnosis: store error: {}){}", what, problem,
                   words_of_group(group));
}

std::string mismatch_sentence(const CallRecord& call, int rank,
                              const std::optional<CallRecord>& other, int other_rank,
                              std::string_view group) {
  auto text = other ? describe_difference(call, rank, *other, other_rank)
                    : formatted(
                          "rank {} called {} where rank {} called another call, and did not "
                          "say which",
                          rank, describe_fully(call), other_rank);
  return text + words_of_group(group);
}

std::string execution_sentence(int rank, const CallRecord& call, std::string_view why,
                               std::string_view group) {
  return formatted("rank {} could not execute its part of {}: {}{}", rank, describe(call), why,
                   words_of_group(group));
}

std::string untold_sentence(std::string_view group) {
  return "the group died, and the rank that found out why did not get to say it" +
         words_of_group(group);
}

std::string late_sentence(const CallRecord& call, std::span<const int> late, Duration waited,
                          std::string_view group) {
  return formatted("after {}: {} posted small operations before {} and did not carry them out{}",
                   format_duration(waited), rank_list(late), describe(call), words_of_group(group));
}

std::string unread_sentence(std::span<const int> slow, int posted, int rank, Duration waited,
                            std::string_view group) {
  return formatted(
      "after {}: {} posted {} operations without ever looking at the first of them; "
      "rank {} waits to post the next{}",
      format_duration(waited), rank_list(slow), posted, rank, words_of_group(group));
}

std::string words_of_early_end(std::uint64_t number, int waiting) {
  return formatted("it left in order before operation #{}, which rank {} waits to post", number,
                   waiting);
}

std::string words_of_unwinding(const CallRecord& call) {
  return formatted("an exception ended its part before its peers had taken what it posted in {}",
                   describe(call));
}

std::string words_of_writer(int rank, const CallRecord& call, std::string_view why) {
  return formatted("; rank {} is in {} and may still write to its output: {}", rank, describe(call),
                   why);
}

std::string aborted_sentence(int rank, std::string_view reason, std::string_view group) {
  return formatted("rank {} ended the group: {}{}", rank, reason, words_of_group(group));
}

}  // namespace lockstep::diagnose
