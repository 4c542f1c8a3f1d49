// What a rank has posted lately in one group, in a form that two ranks can compare.
//
// Calls that are numbered together form a route: the collectives of the group, or the messages from
// one rank to another. On every route each call has a fingerprint and a chain, which is a hash of
// all fingerprints up to it: equal chains at one number mean equal calls up to there.
#pragma once

#include "comm/backend/posted_call.h"

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::watch {

struct Route {
  int from = -1;  // both -1: the collectives
  int to = -1;

  [[nodiscard]] bool is_collective() const { return from < 0; }
  friend auto operator<=>(const Route&, const Route&) = default;
};

// The route of a call of rank `rank`.
[[nodiscard]] Route route_of(Collective collective, int root, int rank);

// One call in a statement.
struct StatedCall {
  std::uint64_t number = 0;
  std::uint64_t fingerprint = 0;
  std::uint64_t chain = 0;
  std::string text;  // as describe_fully() says it
};

struct StatedRoute {
  std::uint64_t last = 0;         // number of the latest call
  std::vector<StatedCall> calls;  // the latest ones, in order
  std::vector<StatedCall> marks;  // chains further back, without texts
};

// What a rank says of itself to the others: a text of lines, written by Ledger::statement().
struct Statement {
  std::string process;  // process.h
  bool has_left = false;
  std::map<Route, StatedRoute> routes;

  // What cannot be read is left out: a peer of another build says less, and nothing breaks.
  [[nodiscard]] static Statement read(std::string_view text);
};

// Where two ranks' calls differ.
struct Difference {
  Route route;
  std::string mine;  // empty: only the range is known
  std::string theirs;
  std::uint64_t number =
      0;  // of the first call that is known to differ, or that is known to be after it
};

// Not synchronised by itself.
class Ledger {
 public:
  // Kept to compare with; said to others; the distance of marks and how many are said.
  static constexpr std::size_t kept = 256;
  static constexpr std::size_t said = 24;
  static constexpr std::size_t mark_distance = 32;
  static constexpr std::size_t marks_kept = 64;

  void note(Route route, const PostedCall& call);
  // Grows with every call.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] std::vector<Route> routes() const;

  [[nodiscard]] std::string statement(std::string_view process, bool has_left) const;
  // The first known difference on routes that both have.
  [[nodiscard]] std::optional<Difference> compare(const Statement& theirs) const;

 private:
  struct Kept {
    PostedCall call;
    std::uint64_t fingerprint = 0;
    std::uint64_t chain = 0;
  };
  struct Line {
    std::deque<Kept> calls;
    std::deque<StatedCall> marks;
    [[nodiscard]] const Kept* find(std::uint64_t number) const;
    [[nodiscard]] std::optional<std::uint64_t> chain_at(std::uint64_t number) const;
  };
  [[nodiscard]] static std::optional<Difference> compare(Route route, const Line& mine,
                                                         const StatedRoute& theirs);

  std::map<Route, Line> lines_;
  std::uint64_t version_ = 0;
};

}  // namespace lockstep::watch
