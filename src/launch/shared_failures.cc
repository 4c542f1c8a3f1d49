#include "launch/shared_failures.h"

#include "launch/environment.h"
#include "launch/log_line.h"

#include <algorithm>

namespace lockstep::launch {

namespace {

constexpr std::size_t most_failures = 100, most_shown = 1000;

// What the C++ runtime prints before the text of an exception that nobody caught.
constexpr std::string_view announcement =
    "terminate called after throwing an instance of 'lockstep::";
constexpr std::string_view before_text = "  what():  ";

bool take(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

// How many characters of the front are between `least` and `most`.
std::size_t run_of(std::string_view text, char least, char most) {
  return static_cast<std::size_t>(
      std::ranges::find_if(text, [=](char c) { return c < least || c > most; }) - text.begin());
}

// The sentence of a line "14:03:21.042 [rank 2] error: the group failed: SENTENCE"; empty for any
// other. The path of the flight record, which differs from rank to rank, is no part of it.
std::string_view marked_sentence(std::string_view line) {
  const auto parsed = parse_log_line(line);
  if (!parsed) return {};
  std::string_view rest = parsed->rest;
  if (!take(rest, "error: ") || !take(rest, failure_mark)) return {};
  return rest.substr(0, rest.rfind(flight_record_mark));
}

// The sentence of "lockstep train: SENTENCE" or "lockstep train: rank 2: SENTENCE", by which a
// program says why it ends; empty for any other line. An agent among the ranks says much else.
std::string_view complaint(std::string_view line) {
  if (!take(line, "lockstep ") || line.starts_with("run: ")) return {};
  line.remove_prefix(run_of(line, 'a', 'z'));
  if (!take(line, ": ")) return {};
  std::string_view behind_rank = line;
  if (!take(behind_rank, "rank ")) return line;
  behind_rank.remove_prefix(run_of(behind_rank, '0', '9'));
  return take(behind_rank, ": ") ? behind_rank : line;
}

}  // namespace

std::string SharedFailures::take(int rank, std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const std::size_t size = std::min(text.size(), line.size() + 1);
    if (shows(rank, line)) shown += text.substr(0, size);
    text.remove_prefix(size);
  }
  return shown;
}

bool SharedFailures::shows(int rank, std::string_view line) {
  const std::string_view sentence = marked_sentence(line);
  if (!sentence.empty()) return is_new(sentence, rank, /*is_complaint=*/false);
  const std::string_view own = complaint(line);
  if (!own.empty() && !ends_with_one(line)) return is_new(own, rank, /*is_complaint=*/true);
  if (is_repeated(line)) return false;
  if (ends_with_one(line) && shown_.size() < most_shown) shown_.emplace(line);
  return true;
}

bool SharedFailures::is_new(std::string_view sentence, int rank, bool is_complaint) {
  const auto known = std::ranges::find(failures_, sentence, &Failure::sentence);
  if (known == failures_.end()) {
    if (failures_.size() < most_failures)
      failures_.push_back({std::string(sentence), {rank}, is_complaint});
    return true;
  }
  if (std::find(known->ranks.begin(), known->ranks.end(), rank) == known->ranks.end())
    known->ranks.push_back(rank);
  return false;
}

bool SharedFailures::ends_with_one(std::string_view line) const {
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    return !one.is_complaint && line.ends_with(one.sentence);
  });
}

bool SharedFailures::has_complained(int rank) const {
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    return one.is_complaint && std::ranges::find(one.ranks, rank) != one.ranks.end();
  });
}

bool SharedFailures::is_repeated(std::string_view line) const {
  const bool announces = line.starts_with(announcement) && line.ends_with("'");
  if (shown_.contains(line)) return true;
  const std::string_view marked = marked_sentence(line), own = complaint(line);
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    if (marked == one.sentence || own == one.sentence) return true;
    if (one.is_complaint) return false;
    if (announces) return true;
    if (!line.ends_with(one.sentence)) return false;
    const std::string_view words = line.substr(0, line.size() - one.sentence.size());
    return words.empty() || words == before_text;
  });
}

}  // namespace lockstep::launch
