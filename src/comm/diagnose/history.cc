#include "comm/diagnose/history.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/diagnose/report.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace lockstep::diagnose {
const KnownCall* ChannelStatement::find(std::uint64_t number) const {
  auto found = std::ranges::find_if(
      calls, [number](const KnownCall& known) { return known.call.number == number; });
  return found == calls.end() ? nullptr : &*found;
}

const ChannelStatement& Statement::of(ChannelKey channel) const {
  static const ChannelStatement none;
  auto found = channels.find(channel);
  return found == channels.end() ? none : found->second;
}

std::string mismatch_sentence(const Difference& difference, const GroupNames& group, int rank,
                              int other) {
  if (difference.mine && difference.theirs)
    return mismatch_sentence(*difference.mine, rank, difference.theirs, other, group);
  const std::array pair{std::min(rank, other), std::max(rank, other)};
  return formatted("{} made different calls at or before #{}, further back than they keep{}",
                   group.ranks(pair), difference.number, group.ending());
}

// process PROCESS | left | left exception | channel SOURCE DESTINATION LAST | mark NUMBER CHAIN |
// call FINGERPRINT CHAIN RECORD
std::string CallHistory::statement(std::string_view process, bool has_left,
                                   bool by_exception) const {
  auto text = formatted("process {}\n", process);
  if (has_left) text += by_exception ? "left exception\n" : "left\n";
  for (const auto& [channel, line] : lines_) {
    text += formatted("channel {} {} {}\n", channel.source, channel.destination,
                      line.calls.back().call.number);
    for (const auto& mark : line.marks)
      text += formatted("mark {} {:x}\n", mark.number, mark.chain);
    auto begin = line.calls.size() > told ? line.calls.size() - told : 0;
    for (auto index = begin; index < line.calls.size(); ++index) {
      const auto& known = line.calls[index];
      text += formatted("call {:x} {:x} {}\n", known.fingerprint, known.chain, written(known.call));
    }
  }
  return text;
}

Statement Statement::read(std::string_view text) {
  constexpr std::int64_t most_rank = std::numeric_limits<int>::max();
  Statement result;
  ChannelStatement* channel = nullptr;
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    WordReader words(line);
    auto kind = words.next();
    if (kind == "process") {
      result.process = words.rest();
    } else if (kind == "left") {
      result.has_left = true;
      result.by_exception = words.next() == "exception";
    } else if (kind == "channel") {
      ChannelKey key;
      key.source = static_cast<int>(words.number(-1, most_rank));
      key.destination = static_cast<int>(words.number(-1, most_rank));
      auto last = words.natural();
      channel = words.is_good() ? &result.channels[key] : nullptr;
      if (channel) channel->last = last;
    } else if (channel && kind == "mark") {
      ChainMark mark{.number = words.natural()};
      mark.chain = words.natural(16);
      if (words.is_good()) channel->marks.push_back(mark);
    } else if (channel && kind == "call") {
      KnownCall known{.fingerprint = words.natural(16), .call = {}};
      known.chain = words.natural(16);
      auto call = read_call(words.rest());
      if (!call || !words.is_good()) continue;
      known.call = *std::move(call);
      channel->calls.push_back(std::move(known));
    }
  }
  return result;
}

const KnownCall* CallHistory::Line::find(std::uint64_t number) const {
  if (calls.empty() || number < calls.front().call.number || number > calls.back().call.number)
    return nullptr;
  return &calls[number - calls.front().call.number];
}

std::optional<std::uint64_t> CallHistory::Line::chain_at(std::uint64_t number) const {
  if (const auto* known = find(number)) return known->chain;
  auto mark = std::ranges::find(marks, number, &ChainMark::number);
  return mark == marks.end() ? std::nullopt : std::optional(mark->chain);
}

void CallHistory::Line::forget() {
  while (calls.size() > kept && !calls.front().is_open) calls.pop_front();
}

void CallHistory::note(ChannelKey channel, const CallRecord& call, std::uint64_t fingerprint,
                       bool is_open) {
  auto& line = lines_[channel];
  auto before = line.calls.empty() ? 0 : line.calls.back().chain;
  line.calls.push_back({fingerprint, combine_fingerprints(before, fingerprint), call, is_open});
  if (is_open) ++open_;
  line.forget();
  if (call.number % mark_distance == 0) {
    line.marks.push_back({call.number, line.calls.back().chain});
    if (line.marks.size() > marks_kept) line.marks.pop_front();
  }
  ++version_;
}

void CallHistory::complete(CallId id) {
  if (find_open(id) == nullptr) return;
  auto& line = lines_.at(id.channel);
  line.calls[id.number - line.calls.front().call.number].is_open = false;
  --open_;
  line.forget();
}

const KnownCall* CallHistory::find_open(CallId id) const {
  const auto* known = find(id.channel, id.number);
  return known != nullptr && known->is_open ? known : nullptr;
}

Duration CallHistory::longest_timeout() const {
  Duration longest{};
  for (const auto& [channel, line] : lines_) {
    for (const auto& known : line.calls) {
      if (known.is_open) longest = std::max(longest, known.call.timeout);
    }
  }
  return longest;
}

std::vector<ChannelKey> CallHistory::channels() const {
  std::vector<ChannelKey> result;
  for (const auto& [channel, line] : lines_) result.push_back(channel);
  return result;
}

const KnownCall* CallHistory::find(ChannelKey channel, std::uint64_t number) const {
  auto line = lines_.find(channel);
  return line == lines_.end() ? nullptr : line->second.find(number);
}

std::optional<Difference> CallHistory::compare(const Line& mine, const ChannelStatement& theirs) {
  auto chains = theirs.marks;
  for (const auto& known : theirs.calls) chains.push_back({known.call.number, known.chain});
  std::uint64_t agreed = 0;  // the chains are equal up to this number
  for (const auto& mark : chains) {
    if (mine.chain_at(mark.number) == mark.chain) agreed = std::max(agreed, mark.number);
  }
  for (const auto& known : theirs.calls) {
    const auto number = known.call.number;
    const auto* own = number > agreed ? mine.find(number) : nullptr;
    if (own && own->fingerprint != known.fingerprint)
      return Difference{own->call, known.call, number};
  }
  for (const auto& mark : chains) {
    auto own = mark.number > agreed ? mine.chain_at(mark.number) : std::nullopt;
    if (own && *own != mark.chain) return Difference{.number = mark.number};
  }
  return std::nullopt;
}

std::optional<Difference> CallHistory::compare(const Statement& theirs) const {
  for (const auto& [channel, line] : lines_) {
    auto other = theirs.channels.find(channel);
    if (other == theirs.channels.end()) continue;
    if (auto difference = compare(line, other->second)) return difference;
  }
  return std::nullopt;
}

}  // namespace lockstep::diagnose
