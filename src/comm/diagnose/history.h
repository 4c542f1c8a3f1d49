// What a rank has called lately in one group, in a form that two ranks can compare, and which of it
// is not complete.
//
// On every channel each call has a fingerprint and a chain, which is a hash of all fingerprints up
// to it: equal chains at one number mean equal calls up to there.
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

// A call as it is kept, and as it is told to other ranks.
struct KnownCall {
  std::uint64_t fingerprint = 0;
  std::uint64_t chain = 0;
  CallRecord call;
  bool is_open = false;  // of this rank: it is not complete
};

// The chain up to a call further back.
struct ChainMark {
  std::uint64_t number = 0;
  std::uint64_t chain = 0;
};

// What a rank tells the others of one channel.
struct ChannelStatement {
  std::uint64_t last = 0;        // number of the latest call
  std::vector<KnownCall> calls;  // the latest ones, in order
  std::vector<ChainMark> marks;

  // The call of that number; null when it is not told.
  [[nodiscard]] const KnownCall* find(std::uint64_t number) const;
};

// What a rank tells the others of itself: a text of lines, written by CallHistory::statement().
struct Statement {
  std::string process;  // sys/process_info.h
  bool has_left = false;
  bool by_exception = false;  // it left while an exception unwound its stack
  std::map<ChannelKey, ChannelStatement> channels;

  // What cannot be read is left out: a peer of another build says less, and nothing breaks.
  [[nodiscard]] static Statement read(std::string_view text);
  // Of a channel; of no calls where nothing is told of it.
  [[nodiscard]] const ChannelStatement& of(ChannelKey channel) const;
};

// Where two ranks' calls differ.
struct Difference {
  ChannelKey channel;
  std::optional<CallRecord> mine = {};  // nothing: only the range is known
  std::optional<CallRecord> theirs = {};
  // Of the first call that is known to differ, or that is known to be after it.
  std::uint64_t number = 0;
};
// rank 0 called all_reduce #5 (...) where rank 1 called barrier #5 (a.cc:9)
[[nodiscard]] std::string mismatch_sentence(const Difference& difference, const GroupNames& group,
                                            int rank, int other);

// Not synchronised by itself.
class CallHistory {
 public:
  // Kept to compare with; told to others; the distance of marks and how many are told.
  static constexpr std::size_t kept = 256;
  static constexpr std::size_t told = 24;
  static constexpr std::size_t mark_distance = 32;
  static constexpr std::size_t marks_kept = 64;

  // In the order of the posts; `call.number` counts within its channel. One that is open is kept
  // until it is complete.
  void note(ChannelKey channel, const CallRecord& call, std::uint64_t fingerprint,
            bool is_open = false);
  void complete(CallId id);
  // How many are open.
  [[nodiscard]] std::size_t open() const { return open_; }
  // Null when it is complete.
  [[nodiscard]] const KnownCall* find_open(CallId id) const;
  // Of the calls that are open.
  [[nodiscard]] Duration longest_timeout() const;
  // Grows with every call.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] std::vector<ChannelKey> channels() const;

  // The number of the latest call of a channel, 0 for none.
  [[nodiscard]] std::uint64_t last_number(ChannelKey channel) const;
  // Null when it is not kept.
  [[nodiscard]] const KnownCall* find(ChannelKey channel, std::uint64_t number) const;
  // The latest call of a channel, else of any; null for none.
  [[nodiscard]] const KnownCall* last_call(ChannelKey channel) const;

  [[nodiscard]] std::string statement(std::string_view process, bool has_left,
                                      bool by_exception = false) const;
  // The first known difference on channels that both have.
  [[nodiscard]] std::optional<Difference> compare(const Statement& theirs) const;

 private:
  struct Line {
    std::deque<KnownCall> calls;
    std::deque<ChainMark> marks;
    // Forgets what is complete and further back than is kept.
    void forget();
    [[nodiscard]] const KnownCall* find(std::uint64_t number) const;
    [[nodiscard]] std::optional<std::uint64_t> chain_at(std::uint64_t number) const;
  };
  [[nodiscard]] static std::optional<Difference> compare(ChannelKey channel, const Line& mine,
                                                         const ChannelStatement& theirs);

  std::map<ChannelKey, Line> lines_;
  std::size_t open_ = 0;
  std::uint64_t version_ = 0;
};

}  // namespace lockstep::diagnose
