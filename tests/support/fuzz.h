// Loops of hostile input:
//
//   for (test::FuzzRounds rounds("my_reader"); rounds.next();) {
//     std::string bytes = test::mutated(valid, rounds.random());
//     ...
//   }
//
// A loop runs for a short time, but 200 rounds at least (LOCKSTEP_FUZZ unset), or for LOCKSTEP_FUZZ
// rounds (100000 in `./dev soak`). Every round has a generator of its own, made from the loop's
// seed, which is printed, and the round's number: LOCKSTEP_FUZZ_SEED=SEED:ROUND runs that one round
// again.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

using Random = std::mt19937_64;

// From 0 to limit - 1; limit is at least 1.
[[nodiscard]] std::size_t below(Random& random, std::size_t limit);
[[nodiscard]] inline bool one_in(Random& random, std::size_t chances) {
  return below(random, chances) == 0;
}

// Any `size` bytes.
[[nodiscard]] std::string random_bytes(Random& random, std::size_t size);

// One to four changes: bytes replaced, flipped, inserted, cut, doubled, moved; numbers of 1, 4 or 8
// bytes set to what lies on an edge.
[[nodiscard]] std::string mutated(std::string bytes, Random& random);

// The same for a list of pieces, such as the frames of a conversation: changed, dropped, repeated,
// exchanged, or replaced by one of `others` (pieces of another conversation).
[[nodiscard]] std::vector<std::string> mutated(std::vector<std::string> pieces, Random& random,
                                               const std::vector<std::string>& others = {});

class FuzzRounds {
 public:
  // Names the loop in what is printed, and prints the seed. A loop of slow rounds does one of
  // `share` of LOCKSTEP_FUZZ rounds, and where `share` is above 10, one of that of 2000 at least.
  explicit FuzzRounds(std::string_view name, std::uint64_t share = 1);
  ~FuzzRounds();  // prints how many rounds there were
  FuzzRounds(const FuzzRounds&) = delete;
  FuzzRounds& operator=(const FuzzRounds&) = delete;

  // Begins the next round; false when it is enough, or when the last one has failed the test.
  [[nodiscard]] bool next();
  [[nodiscard]] Random& random() { return random_; }
  // Rounds that were begun.
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // Whether what is not rare should have happened: always, but where one round is repeated or
  // LOCKSTEP_FUZZ asks for few.
  [[nodiscard]] bool enough() const { return count_ >= fewest_; }

 private:
  void read_environment(std::uint64_t share);

  std::string name_;
  std::uint64_t seed_;
  std::uint64_t fewest_ = 200;
  std::uint64_t first_ = 0;
  std::uint64_t limit_ = 0;  // 0: until `end_`
  std::uint64_t count_ = 0;
  std::chrono::steady_clock::time_point end_;
  Random random_;
};

}  // namespace lockstep::test
