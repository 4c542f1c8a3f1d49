// Ties: parameters that several stages have, such as an embedding that is also the last layer.
//
// Such a parameter belongs to the rank of the first of its stages. The other ranks send their
// gradients there when a step ends, and get the new values before the next forward. So it is in one
// optimizer alone, and in no norm twice.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::pipeline {

class Ties {
 public:
  // Of all stages of the model, and the rank of each. The same on every rank.
  Ties(const std::vector<Stage>& stages, const std::vector<int>& ranks, int own_rank);

  // Whether a parameter of this rank's stages is one of another rank's too.
  [[nodiscard]] bool has(const at::Tensor& parameter) const;
  // Whether another rank owns it.
  [[nodiscard]] bool is_elsewhere(const at::Tensor& parameter) const;

  // Collective over the ranks that have ties, and blocking.
  void send_values(Group& group, std::optional<Duration> timeout);
  // Also forgets the gradients of parameters that belong elsewhere. InvalidArgument for a sparse
  // one.
  void send_gradients(Group& group, std::optional<Duration> timeout);
  // Local: forgets these gradients.
  void forget_gradients();

 private:
  struct Tie {
    std::string name;
    at::Tensor tensor;        // defined where this rank has it
    int owner = 0;            // a rank
    std::vector<int> others;  // ranks, without the owner
  };
  void check_dense() const;
  // Each tie once for each rank other than its owner: `body(tie, other)`.
  template <typename Body>
  void each_pair(int own_rank, Body body);

  std::vector<Tie> ties_;
  int own_rank_;
};

}  // namespace lockstep::pipeline
