// Ties: parameters that several stages have, such as an embedding that is also the last layer.
//
// Such a parameter belongs to the rank of the first of its stages. The other ranks send their
// gradients there when a step ends, and get the new values before the next forward. So the
// parameter is in one optimizer only, and no norm counts it twice. If strategies shard it, they
// shard it in the same way on all of these ranks, and the ranks exchange the parts.
#pragma once

#include "comm/init/backends.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::pipeline {

class Ties {
 public:
  // Takes all stages of the model, and the rank of each. The arguments are the same on every rank.
  Ties(const std::vector<Stage>& stages, const std::vector<int>& ranks, int own_rank);

  // Collective over the pipeline, and blocking. Selects the parts to exchange from `parameters`,
  // the parts of this rank's stages as listed by their handles. Throws InvalidArgument on every
  // rank if ranks have different parts of one parameter.
  void take_parts(const std::vector<Part>& parameters, Group& group,
                  std::optional<Duration> timeout);
  // Returns true if another rank owns the parameter.
  [[nodiscard]] bool is_elsewhere(const Part& parameter) const;

  // Adds the directions of all messages of all ranks.
  void add_directions(Directions& directions) const;

  // Collective over the ranks that have ties, and blocking.
  void send_values(Group& group, std::optional<Duration> timeout);
  // Also forgets the gradients of parameters that belong to other ranks. Throws InvalidArgument for
  // a sparse gradient.
  void send_gradients(Group& group, std::optional<Duration> timeout);
  // Collective over the ranks that have ties, and blocking. Call after a step that did not send
  // gradients: forgets those of parameters whose gradient `is_cleared` on the rank that owns them.
  void drop_cleared(const std::function<bool(const at::Tensor& parameter)>& is_cleared,
                    Group& group, std::optional<Duration> timeout);
  // Local: forgets these gradients.
  void forget_gradients();

 private:
  struct Tie {
    std::string name;
    std::vector<std::string> names;  // all names in the stages
    bool is_here = false;
    int owner = 0;                 // a rank
    std::vector<int> others;       // ranks, without the owner
    std::vector<Part> parts = {};  // that this rank has
  };
  [[nodiscard]] static bool is_of(const Tie& tie, const Part& part);
  void check_dense() const;
  // Calls body(tie, part, other) for each part of each tie and each rank that does not own it.
  template <typename Body>
  void each_pair(Body body);

  std::vector<Tie> ties_;
  int own_rank_;
};

}  // namespace lockstep::pipeline
