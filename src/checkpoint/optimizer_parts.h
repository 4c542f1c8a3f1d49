// What an optimizer keeps of a handle's parameters as parts of a file's tensors, both ways.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/parallel/handle.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::checkpoint {

// Local; refers to the optimizer. InvalidArgument names an optimizer that cannot be saved, and for
// one that has parameters which are not the handle's.
[[nodiscard]] std::vector<FilePart> optimizer_parts(const torch::optim::Optimizer& optimizer,
                                                    const Handle& handle);

// Collective: checks first, and gives the optimizer this state instead of its own. CommonFailure
// when it does not fit; then nothing was changed.
class OptimizerReading {
 public:
  OptimizerReading(torch::optim::Optimizer& optimizer, const Handle& handle, PartsReader& file);
  ~OptimizerReading();
  OptimizerReading(const OptimizerReading&) = delete;
  OptimizerReading& operator=(const OptimizerReading&) = delete;

  // With `verify`, checksums are compared before the optimizer is changed: while its state is read,
  // beside the old one, where all ranks have the memory for both; else by reading twice.
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
  std::vector<Kept> kept_;  // of each parameter that has some
};

}  // namespace lockstep::checkpoint
