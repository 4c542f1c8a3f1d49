// Batch: the rows of one step, cut into micro-batches, and what all ranks know of it.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace lockstep::pipeline {

enum class StepKind : std::uint8_t { train, evaluate, forward };

struct BatchView {
  const Tensors* inputs = nullptr;   // null where this rank has not the first stage
  const Tensors* targets = nullptr;  // null where it has not the last one, or none are needed
  std::uint64_t trained = 0;         // a fingerprint: which parameters of this rank are trained
  bool stays_local = false;          // inside no_sync()
  // In evaluate() and forward(): the rows of the rank that has the fewest, among ranks that make
  // the same collectives as this one; 0: one of them has none.
  std::int64_t fewest_rows = std::numeric_limits<std::int64_t>::max();
};

class Batch {
 public:
  // Collective: every rank tells which call it makes, and those of the first and the last stage
  // what they were given. On every rank alike Mismatch when the calls differ, and InvalidArgument
  // when that is no batch, with the group alive. `fewest_rows` is that of the first and the last
  // rank.
  Batch(Group& group, StepKind kind, BatchView given, int micro_batches, int first_rank,
        int last_rank, std::optional<Duration> timeout);

  // As many as the schedule has; in evaluate() and forward() as many as the fewest rows, if these
  // are fewer.
  [[nodiscard]] int micro_batches() const { return micro_batches_; }
  // Equal for steps whose stages pass on tensors of equal sizes, of which the same ones require a
  // gradient.
  [[nodiscard]] std::uint64_t kind() const { return kind_; }
  [[nodiscard]] layout::Range rows_of(int micro_batch) const;
  // Of all rows.
  [[nodiscard]] double share_of(int micro_batch) const;
  // Of the tensors that this rank was given, without history.
  [[nodiscard]] Tensors inputs_of(int micro_batch) const {
    return cut(*given_.inputs, micro_batch);
  }
  [[nodiscard]] Tensors targets_of(int micro_batch) const {
    return cut(*given_.targets, micro_batch);
  }

 private:
  [[nodiscard]] Tensors cut(const Tensors& tensors, int micro_batch) const;

  BatchView given_;
  int micro_batches_;
  std::int64_t rows_ = 0;
  std::uint64_t kind_ = 0;
};

// Rows of the tensors; 0 or less if they are no batch.
[[nodiscard]] std::int64_t rows_of_batch(const Tensors& tensors, StepKind kind);

// What a loss function returned, as a plain tensor; collective over ranks that have it together.
// InvalidArgument unless it is one number, and in a training step requires a gradient.
[[nodiscard]] at::Tensor plain_loss(const at::Tensor& loss, StepKind kind);

// The outputs of all rows: those of the micro-batches, one after the other. An output without dims
// becomes one with an element per micro-batch.
[[nodiscard]] Tensors joined(const std::vector<Tensors>& micro_batches);

}  // namespace lockstep::pipeline
