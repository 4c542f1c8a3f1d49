// Converts an optimizer's state of a handle's parameters to parts of a file's tensors, and back.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/parallel/handle.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::checkpoint {

// Not collective; the result refers to the optimizer. Throws InvalidArgument, which names the
// optimizer, if the optimizer cannot be saved or has parameters that are not the handle's.
[[nodiscard]] std::vector<FilePart> optimizer_parts(const torch::optim::Optimizer& optimizer,
                                                    const Handle& handle);

// Collective. Checks first, then replaces the optimizer's state. Throws CollectiveFailure if the
// state does not fit; nothing is changed in that case.
class OptimizerReading {
 public:
  OptimizerReading(torch::optim::Optimizer& optimizer, const Handle& handle, PartsReader& file);
  ~OptimizerReading();
  OptimizerReading(const OptimizerReading&) = delete;
  OptimizerReading& operator=(const OptimizerReading&) = delete;

  // With `verify`, compares checksums before the optimizer is changed: while its state is read,
  // beside the old one, if all ranks have the memory for both; otherwise by reading twice.
  void read(bool verify);

 private:
  struct Kept;

  [[nodiscard]] bool has_room_beside_old_state() const;

  void check() const;
  void check_all_known() const;
  void read_steps();

  torch::optim::Optimizer& optimizer_;
  const Handle& handle_;
  PartsReader& file_;
  std::vector<Kept> kept_;  // of each parameter with state
};

}  // namespace lockstep::checkpoint
