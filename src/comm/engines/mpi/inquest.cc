#include "comm/engines/mpi/inquest.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/diagnose/call_watch.h"
#include "comm/diagnose/last_call.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace lockstep::mpi {
namespace {

Verdict difference(const Inquest& inquest, std::string_view group, int other,
                   const std::string& theirs) {
  watch::Difference found{.route = {},
                          .mine = describe_fully(inquest.call),
                          .theirs = theirs,
                          .number = inquest.call.number};
  return {'M', watch::mismatch_sentence(found, group, inquest.rank, other)};
}

std::string last_calls(const Inquest& inquest, const std::vector<int>& ranks) {
  if (ranks.empty()) return {};
  return "; " + words_of_last_calls(ranks, [&](int rank) { return inquest.answers.at(rank).text; });
}

// Leaves those whose last call was the earliest: the others may be waiting for them.
std::vector<int> take_those_ahead(const Inquest& inquest, std::vector<int>& ranks) {
  auto last = [&](int rank) { return inquest.answers.at(rank).last; };
  const auto earliest = last(*std::ranges::min_element(ranks, {}, last));
  auto later = std::ranges::stable_partition(ranks, [&](int r) { return last(r) == earliest; });
  std::vector<int> taken(later.begin(), later.end());
  ranks.erase(later.begin(), later.end());
  return taken;
}

std::string words_about_behind(const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  return formatted("; {} {} behind, too", rank_list(ranks), ranks.size() == 1 ? "is" : "are");
}

// "; rank 2 did not answer", for those that nothing else is said about.
std::string words_about_silent(const std::vector<int>& ranks) {
  return ranks.empty() ? "" : formatted("; {} did not answer", rank_list(ranks));
}

std::string words_about_stopped(const std::map<int, int>& stopped) {
  std::string text;
  for (auto [rank, process] : stopped)
    text += formatted("; {} process {} is stopped",
                      stopped.size() == 1 ? "its" : formatted("rank {}'s", rank), process);
  return text;
}

Verdict overdue(const Inquest& inquest, std::string_view group) {
  std::vector<int> stopped;
  std::vector<int> silent;
  std::vector<int> missing;
  std::vector<int> waiting{inquest.rank};
  for (int rank : inquest.asked) {
    auto answer = inquest.answers.find(rank);
    if (answer == inquest.answers.end()) {
      (inquest.stopped.contains(rank) ? stopped : silent).push_back(rank);
    } else {
      bool posted = answer->second.state == Answer::State::posted;
      (posted ? waiting : missing).push_back(rank);
    }
  }
  std::ranges::sort(waiting);
  auto due = describe_due(inquest.call);
  auto waits =
      formatted("that {} {} in", rank_list(waiting), waiting.size() == 1 ? "waits" : "wait");
  auto is_needed = [&](const std::vector<int>& ranks) {
    return formatted("{} did not answer, and {} needed for {} {}", rank_list(ranks),
                     ranks.size() == 1 ? "is" : "are", due, waits);
  };
  auto text = formatted("after {}: ", format_duration(inquest.waited));
  if (!stopped.empty()) {
    // What the others lack may well be this one's.
    text += is_needed(stopped) + words_about_stopped(inquest.stopped) + words_about_silent(silent);
  } else if (!missing.empty()) {
    const auto behind = take_those_ahead(inquest, missing);
    text += formatted("{} never called {} {}{}{}{}", rank_list(missing), due, waits,
                      last_calls(inquest, missing), words_about_behind(behind),
                      words_about_silent(silent));
  } else if (!silent.empty()) {
    text += is_needed(silent);
  } else {
    text += formatted("all ranks called {}, but it is not complete", due);
  }
  return {'T', text + watch::words_of_group(group)};
}

}  // namespace

std::string written(const Answer& answer) {
  return formatted("{}{} {}", static_cast<char>(answer.state), answer.last, answer.text);
}

Answer read_answer(std::uint64_t fingerprint, std::string_view text) {
  if (text.empty()) return {};
  Answer answer{static_cast<Answer::State>(text.front()), fingerprint, 0, {}};
  const auto blank = text.find(' ');
  if (blank == std::string_view::npos) return answer;
  std::from_chars(text.data() + 1, text.data() + blank, answer.last);
  answer.text = text.substr(blank + 1);
  return answer;
}

Verdict judge(const Inquest& inquest, std::string_view group) {
  for (const auto& [rank, answer] : inquest.answers) {
    bool differs = answer.fingerprint != 0 && answer.fingerprint != inquest.fingerprint;
    if (differs || inquest.cause == Inquest::Cause::difference)
      return difference(inquest, group, rank, answer.text);
  }
  if (inquest.cause == Inquest::Cause::difference)
    return difference(inquest, group, *inquest.asked.begin(),
                      "another call, and did not say which");
  return overdue(inquest, group);
}

}  // namespace lockstep::mpi
