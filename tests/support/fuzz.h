// Loops of random hostile input:
//
//   for (test::FuzzRounds rounds("my_reader"); rounds.next();) {
//     std::string bytes = test::mutated(valid, rounds.random());
//     ...
//   }
//
// A loop runs for a short time but at least 200 rounds, or for LOCKSTEP_FUZZ rounds if that
// variable is set (100000 in `./dev soak`). Every round has its own generator, seeded with the
// loop's seed, which is printed, and the number of the round: LOCKSTEP_FUZZ_SEED=SEED:ROUND repeats
// that one round.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

using Random = std::mt19937_64;

// Returns a number from 0 to limit - 1; limit is at least 1.
[[nodiscard]] std::size_t below(Random& random, std::size_t limit);
[[nodiscard]] inline bool one_in(Random& random, std::size_t chances) {
  return below(random, chances) == 0;
}

// Returns `size` random bytes.
[[nodiscard]] std::string random_bytes(Random& random, std::size_t size);

// Makes one to four changes: bytes are replaced, flipped, inserted, removed, doubled or moved;
// numbers of 1, 4 or 8 bytes are set to boundary values.
[[nodiscard]] std::string mutated(std::string bytes, Random& random);

// Same for a list of pieces, such as the frames of a connection: pieces are changed, dropped,
// repeated, exchanged, or replaced by one of `others` (pieces of another connection).
[[nodiscard]] std::vector<std::string> mutated(std::vector<std::string> pieces, Random& random,
                                               const std::vector<std::string>& others = {});

class FuzzRounds {
 public:
  // `name` identifies the loop in its output; prints the seed. For slow rounds, divides
  // LOCKSTEP_FUZZ by `share`; if `share` is above 10, also divides the minimum, which is then 2000
  // / share.
  explicit FuzzRounds(std::string_view name, std::uint64_t share = 1);
  ~FuzzRounds();  // prints the number of rounds
  FuzzRounds(const FuzzRounds&) = delete;
  FuzzRounds& operator=(const FuzzRounds&) = delete;

  // Begins the next round. Returns false after the last round, or if the previous one has failed
  // the test.
  [[nodiscard]] bool next();
  [[nodiscard]] Random& random() { return random_; }
  // Returns the number of rounds begun.
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // Returns true if there were enough rounds for common outcomes to occur: false only if a single
  // round is repeated or LOCKSTEP_FUZZ asks for few rounds.
  [[nodiscard]] bool enough() const { return count_ >= fewest_; }

 private:
  void read_environment(std::uint64_t share);

  std::string name_;
  std::uint64_t seed_;
  std::uint64_t fewest_ = 200;
  std::uint64_t first_ = 0;
  std::uint64_t limit_ = 0;  // 0: no limit until `end_`
  std::uint64_t count_ = 0;
  std::chrono::steady_clock::time_point end_;
  Random random_;
};

}  // namespace lockstep::test
