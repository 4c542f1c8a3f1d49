// One call without its tensors: the form in which all backends compare, store, publish and describe
// calls.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/call.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/text.h"

namespace lockstep {

// The names of a group and its ranks in messages. A rank of a subgroup is also named by its world
// rank if the two differ.
class GroupNames {
 public:
  // `world_ranks`: the world ranks of the group's ranks; empty if they are the same.
  GroupNames(std::string name = "world", std::vector<int> world_ranks = {});

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int world_rank(int rank) const;
  // Returns the names of a subgroup of these ranks, in their order.
  [[nodiscard]] GroupNames part(std::span<const int> ranks, std::string name) const;

  // "rank 1", "rank 1 (rank 3 of the world)"
  [[nodiscard]] std::string rank(int rank) const;
  // "rank 1's", "rank 1's (rank 3 of the world)"
  [[nodiscard]] std::string ranks_own(int rank) const;
  // "ranks 0, 2", "ranks 0-2 (ranks 4-6 of the world)"
  [[nodiscard]] std::string ranks(std::span<const int> ranks) const;
  // Returns the end of a sentence: " [group world/split#1/0]", or nothing for the world.
  [[nodiscard]] std::string ending() const;

 private:
  // " (rank 3 of the world)", or nothing.
  [[nodiscard]] std::string in_world(std::span<const int> ranks) const;

  std::string name_;
  std::vector<int> world_ranks_;
};

// CallInfo (lockstep/comm/call.h) as values instead of views.
struct CallRecord {
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  int root = -1;
  std::optional<DType> dtype = {};
  std::int64_t elements = 0;
  std::vector<std::int64_t> input_counts = {};
  std::vector<std::int64_t> output_counts = {};
  std::string tag = {};
  std::string file = {};  // of the call site, without its folders
  std::uint32_t line = 0;
  std::uint64_t number = 0;
  Duration timeout = {};  // of its wait; not published

  [[nodiscard]] bool is_uneven() const { return !input_counts.empty() || !output_counts.empty(); }
  friend bool operator==(const CallRecord&, const CallRecord&) = default;
};
[[nodiscard]] CallRecord record_of(const CallInfo& call);

// Returns true if the calls match: two ranks' calls of one collective, or the two ends of one
// message. Does not compare the counts of an uneven all_to_all; counts_agree() does.
[[nodiscard]] bool same_call(const CallRecord& a, const CallRecord& b);
// For an all_to_all: returns true if rank `from_rank` sends as many elements to `to_rank` as that
// rank expects.
[[nodiscard]] bool counts_agree(const CallRecord& from, int from_rank, const CallRecord& to,
                                int to_rank);

// Returns a hash that is equal for calls that match (same_call()).
[[nodiscard]] std::uint64_t fingerprint_of(const CallRecord& call);

// all_reduce #417 (bucket 2, 12 MiB, train.cc:88); recv #3 from rank 1 (12 B, train.cc:90). `group`
// names the ranks in it: recv #3 from rank 1 (rank 5 of the world, 12 B, train.cc:90).
[[nodiscard]] std::string describe(const CallRecord& call, const GroupNames& group = {});
// Describes the call that a missing rank should have made: the same call, or the other end of a
// message.
[[nodiscard]] std::string describe_due(const CallRecord& call, const GroupNames& group = {});
// all_reduce #417 (bucket 2, sum, 3145728 x float32, train.cc:88)
[[nodiscard]] std::string describe_fully(const CallRecord& call, const GroupNames& group = {});

// A call of which only the text is known, such as a call in a flight record.
struct CallWords {
  std::string_view collective;
  std::uint64_t number = 0;
  std::string_view tag = {};
  std::string_view op = {};     // empty: none
  int root = -1;                // or the peer of a message; below 0: none
  std::int64_t elements = -1;   // below 0: not a single number
  std::string_view dtype = {};  // empty: no data
  bool is_uneven = false;
  std::string where = {};  // train.cc:88
};
[[nodiscard]] std::string describe_fully(const CallWords& call, const GroupNames& group = {});
// rank 0 called all_reduce #5 (sum, 4 x float32, a.cc:3) where rank 1 called barrier #5 (a.cc:9).
// If both calls are uneven, shows the first count that differs.
[[nodiscard]] std::string describe_difference(const CallRecord& one, int rank,
                                              const CallRecord& other, int other_rank,
                                              const GroupNames& group = {});

// Returns one line of text that read_call() understands; line ends in a tag become blanks.
[[nodiscard]] std::string written(const CallRecord& call);
// Returns std::nullopt for any other text.
[[nodiscard]] std::optional<CallRecord> read_call(std::string_view text);

// Reads a line of words, separated by single blanks, that a peer has written.
class WordReader {
 public:
  explicit WordReader(std::string_view line) : rest_(line) {}

  std::string_view next() {
    auto word = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(std::min(rest_.size(), word.size() + 1));
    return word;
  }
  // Returns a number in the given range. Otherwise returns `least` and marks the line as invalid.
  std::int64_t number(std::int64_t least, std::int64_t most) {
    auto value = parse_integer(next());
    good_ = good_ && value && *value >= least && *value <= most;
    return good_ ? *value : least;
  }
  std::uint64_t natural(int base = 10) {
    auto word = next();
    std::uint64_t value = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
    good_ = good_ && error == std::errc() && end == word.data() + word.size();
    return value;
  }

  // Returns the text that has not been read.
  [[nodiscard]] std::string_view rest() const { return rest_; }
  // Returns true if all words could be parsed.
  [[nodiscard]] bool is_good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// Returns 0, 1, ..., size - 1.
[[nodiscard]] inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace lockstep
