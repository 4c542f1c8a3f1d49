// The latest calls of a rank in one group, in a form that two ranks can compare, and which of them
// are incomplete.
//
// On every channel, each call has a fingerprint and a chain, which is a hash of all fingerprints up
// to it. If two ranks have equal chains at one number, all their calls up to it are equal.
#pragma once

#include "comm/call/record.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::diagnose {

// A call as it is stored and published to other ranks.
struct KnownCall {
  std::uint64_t fingerprint = 0;
  std::uint64_t chain = 0;
  CallRecord call;
  bool is_open = false;  // on this rank: not complete
};

// The chain value at an earlier call.
struct ChainMark {
  std::uint64_t number = 0;
  std::uint64_t chain = 0;
};

// A rank's published statement about one channel.
struct ChannelStatement {
  std::uint64_t last = 0;        // number of the latest call
  std::vector<KnownCall> calls;  // the latest ones, in order
  std::vector<ChainMark> marks;

  // Returns the call with that number; null if it was not published.
  [[nodiscard]] const KnownCall* find(std::uint64_t number) const;
};

// A rank's published statement about itself: lines of text, written by CallHistory::statement().
struct Statement {
  std::string process;  // sys/process_info.h
  bool has_left = false;
  bool by_exception = false;  // it left while an exception unwound its stack
  std::map<ChannelKey, ChannelStatement> channels;

  // Skips lines that cannot be parsed, because a peer of another build may write other lines.
  [[nodiscard]] static Statement read(std::string_view text);
  // Returns the statement about a channel; an empty one if the rank has not published any.
  [[nodiscard]] const ChannelStatement& of(ChannelKey channel) const;
};

// A difference between two ranks' calls.
struct Difference {
  std::optional<CallRecord> mine = {};  // std::nullopt: only the range is known
  std::optional<CallRecord> theirs = {};
  // The number of the first call that is known to differ, or of a call that is known to follow it.
  std::uint64_t number = 0;
};
// rank 0 called all_reduce #5 (...) where rank 1 called barrier #5 (a.cc:9)
[[nodiscard]] std::string mismatch_sentence(const Difference& difference, const GroupNames& group,
                                            int rank, int other);

// Not synchronised.
class CallHistory {
 public:
  // `kept`: the number of calls to compare with. `told`: the number of calls to publish. The last
  // two: the distance and the number of chain marks.
  static constexpr std::size_t kept = 256;
  static constexpr std::size_t told = 24;
  static constexpr std::size_t mark_distance = 32;
  static constexpr std::size_t marks_kept = 64;

  // Call in the order of the posts; `call.number` counts within its channel. An open call is kept
  // until it is complete.
  void note(ChannelKey channel, const CallRecord& call, std::uint64_t fingerprint,
            bool is_open = false);
  void complete(CallId id);
  // Returns the number of open calls.
  [[nodiscard]] std::size_t open() const { return open_; }
  // Returns null if the call is complete.
  [[nodiscard]] const KnownCall* find_open(CallId id) const;
  // Returns the longest timeout of the open calls.
  [[nodiscard]] Duration longest_timeout() const;
  // Increases with every call.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] std::vector<ChannelKey> channels() const;

  // Returns null if the call is not kept.
  [[nodiscard]] const KnownCall* find(ChannelKey channel, std::uint64_t number) const;

  [[nodiscard]] std::string statement(std::string_view process, bool has_left,
                                      bool by_exception = false) const;
  // Returns the first known difference on channels that both ranks have.
  [[nodiscard]] std::optional<Difference> compare(const Statement& theirs) const;

 private:
  struct Line {
    std::deque<KnownCall> calls;
    std::deque<ChainMark> marks;
    // Drops complete calls that are older than the kept range.
    void forget();
    [[nodiscard]] const KnownCall* find(std::uint64_t number) const;
    [[nodiscard]] std::optional<std::uint64_t> chain_at(std::uint64_t number) const;
  };
  [[nodiscard]] static std::optional<Difference> compare(const Line& mine,
                                                         const ChannelStatement& theirs);

  std::map<ChannelKey, Line> lines_;
  std::size_t open_ = 0;
  std::uint64_t version_ = 0;
};

}  // namespace lockstep::diagnose
