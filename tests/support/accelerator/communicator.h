// Collectives with NCCL's rules. The ranks of a communicator launch the same calls in the same
// order, each on a stream of its own device; a call runs when it is the first task of all these
// streams. The host never blocks. Reported, and then run out without effect: a call that differs
// between ranks, one that some rank never launches, and communicators that two devices launch in
// opposite orders, by whatever chain, even if this time they do not wait for each other: a device
// may have no room for both.
#pragma once

#include "support/accelerator/machine.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// One rank's bytes in a call: those that it reads and those that it writes.
struct RankBytes {
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;
  std::size_t output_bytes = 0;
  std::vector<std::size_t> input_counts = {};  // bytes for each rank, if they differ
};

// Computes a whole call. The parts of all ranks, with addresses that kernels can use.
using CollectiveKernel = std::function<void(const std::vector<RankBytes>&)>;

class Communicator {
 public:
  Communicator(int size, std::string name);

  // `signature` must be the same on all ranks.
  void launch(int rank, Actor stream, const std::string& signature, const RankBytes& part,
              CollectiveKernel kernel);
  // Ends all calls, also later ones, without effect.
  void abort();
  // True after abort(), and once a fault has ended it.
  [[nodiscard]] bool is_broken() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::test::accelerator
