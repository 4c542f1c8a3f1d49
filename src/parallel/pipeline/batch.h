// Batch: the rows of one step, divided into micro-batches, and the properties of the batch that all
// ranks know.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::pipeline {

// Descriptions of the tensors that one stage passes to the next.
struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  std::vector<std::int64_t> sizes;
  bool operator==(const TensorMeta&) const = default;
};
using Specs = std::vector<TensorMeta>;

[[nodiscard]] Specs specs_of(const Tensors& tensors);
// "Float [2, 3], Long [2]", for messages.
[[nodiscard]] std::string describe(const Specs& specs);

// Converts specs to a message of fixed size, int64 in one dimension, and back. Throws
// InvalidArgument if the message has no room for all tensors and dims, and Mismatch for an invalid
// message. `of` is for the text of errors.
inline constexpr std::int64_t spec_numbers = 128;
[[nodiscard]] at::Tensor message_of(const Specs& specs, const std::string& of);
[[nodiscard]] Specs specs_in(const at::Tensor& message, const std::string& of);

enum class StepKind : std::uint8_t { train, evaluate, forward };

struct BatchView {
  const Tensors* inputs = nullptr;   // null if this rank does not have the first stage
  const Tensors* targets = nullptr;  // null without the last stage, or if there are none
  // A fingerprint of this rank's state that determines the tensors between stages, besides the
  // batch: which parameters are trained, their dtypes, and autocast.
  std::uint64_t mode = 0;
  bool stays_local = false;  // inside no_sync()
  // The most micro-batches to make. For evaluate() and forward(): the fewest rows of any rank that
  // makes the same collectives as this rank; 0 if one of these ranks has no rows.
  std::int64_t fewest_rows = std::numeric_limits<std::int64_t>::max();
};

class Batch {
 public:
  // Collective. Every rank contributes its kind of call; those of the first and the last stage also
  // contribute their numbers of rows. Throws the same error on every rank: ComparedMismatch if the
  // calls differ, or InvalidArgument if the batch is invalid; the group then stays usable. Only
  // `fewest_rows` of the first and the last rank is used.
  Batch(Group& group, StepKind kind, BatchView given, int micro_batches, int first_rank,
        int last_rank, std::optional<Duration> timeout);

  // Returns the number of micro-batches to make: those in the schedule, but at most `fewest_rows`
  // and, in evaluate() and forward(), at most the rows.
  [[nodiscard]] int micro_batches() const { return micro_batches_; }
  // Equal for steps whose stages exchange tensors of equal sizes that also agree in requires_grad.
  [[nodiscard]] std::uint64_t kind() const { return kind_; }
  // Equal for steps in which each rank has the same BatchView::mode, whatever the sizes.
  [[nodiscard]] std::uint64_t mode() const { return mode_; }
  [[nodiscard]] layout::Range rows_of(int micro_batch) const;
  // The micro-batch's share of all rows.
  [[nodiscard]] double share_of(int micro_batch) const;
  // Rows of the tensors that this rank was given, without gradient history.
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
  std::uint64_t mode_ = 0;
};

// Returns the number of rows of the tensors; 0 or less if the batch is invalid, or null.
[[nodiscard]] std::int64_t rows_of_batch(const Tensors* tensors, StepKind kind);

// Converts the result of a loss function to a plain tensor; collective over the ranks that share
// it. Throws InvalidArgument unless it is one number that, in a training step, requires grad.
[[nodiscard]] at::Tensor plain_loss(const at::Tensor& loss, StepKind kind);

// Concatenates the outputs of the micro-batches. An output without dims becomes a tensor with one
// element per micro-batch.
[[nodiscard]] Tensors joined(const std::vector<Tensors>& micro_batches);

}  // namespace lockstep::pipeline
