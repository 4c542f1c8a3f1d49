#include "launch/shared_failures.h"

#include "launch/environment.h"

#include <algorithm>

namespace lockstep::launch {

namespace {

constexpr std::size_t most_failures = 100, most_shown = 1000;

// What the C++ runtime prints before the text of an exception that nobody caught.
constexpr std::string_view announcement =
    "terminate called after throwing an instance of 'lockstep::";
constexpr std::string_view before_text = "  what():  ";

// Takes what `pattern` describes off the front: '0' stands for a digit.
bool take(std::string_view& text, std::string_view pattern) {
  if (text.size() < pattern.size()) return false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool fits = pattern[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == pattern[i];
    if (!fits) return false;
  }
  text.remove_prefix(pattern.size());
  return true;
}

void take_digits(std::string_view& text) {
  while (take(text, "0")) {
  }
}

void take_letters(std::string_view& text) {
  while (!text.empty() && text.front() >= 'a' && text.front() <= 'z') text.remove_prefix(1);
}

// The sentence of a line "14:03:21.042 [rank 2] error: the group failed: SENTENCE"; empty for any
// other. The path of the flight record, which differs from rank to rank, is no part of it.
std::string_view marked_sentence(std::string_view line) {
  if (!take(line, "00:00:00.000 ")) return {};
  if (take(line, "[rank ")) {
    take_digits(line);
    if (!take(line, "] ")) return {};
  }
  if (!take(line, "error: ") || !line.starts_with(failure_mark)) return {};
  line.remove_prefix(std::string_view(failure_mark).size());
  return line.substr(0, line.rfind(flight_record_mark));
}

// "lockstep train: rank 2: ".
bool is_of_our_programs(std::string_view words) {
  if (!take(words, "lockstep ")) return false;
  take_letters(words);
  if (!take(words, ": rank ")) return false;
  take_digits(words);
  return words == ": ";
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
  if (sentence.empty()) {
    if (is_repeated(line)) return false;
    if (ends_with_one(line) && shown_.size() < most_shown) shown_.emplace(line);
    return true;
  }
  auto known = std::find_if(failures_.begin(), failures_.end(),
                            [&](const Failure& one) { return one.sentence == sentence; });
  if (known == failures_.end()) {
    if (failures_.size() < most_failures) failures_.push_back({std::string(sentence), {rank}});
    return true;
  }
  if (std::find(known->ranks.begin(), known->ranks.end(), rank) == known->ranks.end())
    known->ranks.push_back(rank);
  return false;
}

bool SharedFailures::ends_with_one(std::string_view line) const {
  return std::ranges::any_of(failures_,
                             [&](const Failure& one) { return line.ends_with(one.sentence); });
}

bool SharedFailures::is_repeated(std::string_view line) const {
  if (failures_.empty()) return false;
  if (line.starts_with(announcement) && line.ends_with("'")) return true;
  if (shown_.contains(line)) return true;
  const std::string_view marked = marked_sentence(line);
  return std::ranges::any_of(failures_, [&](const Failure& one) {
    if (marked == one.sentence) return true;
    if (!line.ends_with(one.sentence)) return false;
    const std::string_view words = line.substr(0, line.size() - one.sentence.size());
    return words.empty() || words == before_text || is_of_our_programs(words);
  });
}

}  // namespace lockstep::launch
