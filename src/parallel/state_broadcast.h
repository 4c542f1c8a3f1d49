// Rank 0's values of some tensors become every rank's.
#pragma once

#include "parallel/bucket.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::parallel {

// Tensors may have gaps, and elements that share memory (expand()): each place is sent once.

// Collective and blocking. Tensors of one dtype and device travel together, about `bucket_bytes` at
// a time.
void broadcast_now(const Group& group, const std::vector<at::Tensor>& tensors,
                   std::int64_t bucket_bytes, const CallOptions& call = {});

// The same, from any root, for tensors that are broadcast again and again: the memory is kept. Not
// thread-safe.
class StateBroadcast {
 public:
  // The group outlives this object.
  StateBroadcast(Group& group, std::vector<at::Tensor> tensors);

  // Posts the values that the root has now. Blocks for an earlier post that nobody finished.
  void post(std::optional<Duration> timeout, int root = 0);
  // Blocks until they are there and writes them into the tensors. Writing is hidden from version
  // counters: a graph that saved a buffer may still be walked backward once more, as when nothing
  // had been written.
  void finish();

 private:
  struct Part {
    Bucket bucket;
    std::vector<at::Tensor> tensors;
    Work work = {};
  };
  void build();
  [[nodiscard]] bool fits() const;

  Group& group_;
  int root_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<Part> parts_;
};

}  // namespace lockstep::parallel
