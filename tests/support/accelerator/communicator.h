// Collectives with NCCL's rules. The ranks of a communicator launch the same calls in the same
// order, each on a stream of its own device; a call runs when it is the first task of all these
// streams. The host never blocks. These faults are reported, and the calls then complete without
// effect: a call that differs between ranks; a call that some rank never launches; and calls of
// several communicators that two devices launch in opposite orders, directly or through a chain of
// other calls. Opposite orders are reported even if the program completes, because a real device
// may be unable to run both calls at once.
#pragma once

#include "support/accelerator/machine.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// The bytes that one rank reads and writes in a call.
struct RankBytes {
  const void* input = nullptr;
  std::size_t input_bytes = 0;
  void* output = nullptr;
  std::size_t output_bytes = 0;
  std::vector<std::size_t> input_counts = {};  // bytes for each rank, if they differ
};

// Computes a whole call, given the parts of all ranks with addresses that kernels can use.
using CollectiveKernel = std::function<void(const std::vector<RankBytes>&)>;

class Communicator {
 public:
  Communicator(int size, std::string name);

  // `signature` must be the same on all ranks.
  void launch(int rank, Actor stream, const std::string& signature, const RankBytes& part,
              CollectiveKernel kernel);
  // Makes all calls, also later ones, complete without effect.
  void abort();
  // Returns true after abort() or after a fault.
  [[nodiscard]] bool is_broken() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::test::accelerator
