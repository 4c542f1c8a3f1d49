#include "launch/shared_failures.h"

#include <lockstep/launch/environment.h>

#include <algorithm>

namespace lockstep::launch {

namespace {

// What the C++ runtime prints before the text of an exception that nobody caught.
constexpr std::string_view announcement =
    "terminate called after throwing an instance of 'lockstep::";

// The sentence of a marked line; empty for any other.
std::string_view marked_sentence(std::string_view line) {
  const std::string_view mark = failure_mark;
  const std::size_t begin = line.find(mark);
  if (begin == std::string_view::npos) return {};
  const std::string_view sentence = line.substr(begin + mark.size());
  return sentence.substr(0, sentence.rfind(flight_record_mark));
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
  if (sentence.empty()) return !is_repeated(line);
  auto known = std::find_if(failures_.begin(), failures_.end(),
                            [&](const Failure& one) { return one.sentence == sentence; });
  if (known == failures_.end()) {
    failures_.push_back({std::string(sentence), {rank}});
    return true;
  }
  if (std::find(known->ranks.begin(), known->ranks.end(), rank) == known->ranks.end())
    known->ranks.push_back(rank);
  return false;
}

bool SharedFailures::is_repeated(std::string_view line) const {
  if (failures_.empty()) return false;
  if (line.starts_with(announcement)) return true;
  return std::any_of(failures_.begin(), failures_.end(), [&](const Failure& one) {
    return line.find(one.sentence) != std::string_view::npos;
  });
}

}  // namespace lockstep::launch
