#include "parallel/pipeline/batch.h"

#include "base/check.h"
#include "base/fingerprint.h"

#include <ATen/ops/empty.h>

namespace lockstep::pipeline {
namespace {

// In the place of a number of rows.
enum Rows : std::int64_t { not_here = -1, no_tensors = -2, no_rows = -3, different = -4 };

std::int64_t rows_in(const Tensors* tensors) {
  if (tensors == nullptr) return Rows::not_here;
  if (tensors->empty()) return Rows::no_tensors;
  std::int64_t rows = Rows::not_here;
  for (const at::Tensor& tensor : *tensors) {
    if (!tensor.defined() || tensor.dim() == 0) return Rows::no_rows;
    if (rows != Rows::not_here && tensor.size(0) != rows) return Rows::different;
    rows = tensor.size(0);
  }
  return rows;
}

std::uint64_t fingerprint_of_sizes(const Tensors* tensors) {
  std::uint64_t all = 0;
  if (tensors == nullptr) return all;
  for (const at::Tensor& tensor : *tensors) {
    if (!tensor.defined()) continue;
    all = combine_fingerprints(all, static_cast<std::uint64_t>(tensor.scalar_type()));
    all = combine_fingerprints(
        all, lockstep::fingerprint_of(std::span(tensor.sizes().data(), tensor.sizes().size())));
  }
  return all;
}

void check_rows(const char* what, int rank, std::int64_t rows, int micro_batches) {
  check(rows != Rows::no_tensors, "pipeline: {}: expected tensors on rank {}, found none", what,
        rank);
  check(rows != Rows::no_rows,
        "pipeline: {}: expected tensors with rows on rank {}, found one without dims or undefined",
        what, rank);
  check(rows != Rows::different,
        "pipeline: {}: expected tensors with equally many rows on rank {}, found different ones",
        what, rank);
  check(rows >= micro_batches,
        "pipeline: {}: expected a row for each of {} micro-batches, found {}", what, micro_batches,
        rows);
}

}  // namespace

Batch::Batch(Group& group, StepKind kind, BatchView given, int micro_batches, int first_rank,
             int last_rank, std::optional<Duration> timeout)
    : given_(given), micro_batches_(micro_batches) {
  at::Tensor own = at::empty({4}, at::kLong), all = at::empty({group.size(), 4}, at::kLong);
  auto* numbers = own.mutable_data_ptr<std::int64_t>();
  numbers[0] = rows_in(given.inputs);
  numbers[1] = rows_in(given.targets);
  numbers[2] = static_cast<std::int64_t>(fingerprint_of_sizes(given.inputs));
  numbers[3] = static_cast<std::int64_t>(given.trained);
  group.all_gather(all, own, {.tag = "rows of a batch", .timeout = timeout}).wait();
  const auto* told = all.const_data_ptr<std::int64_t>();
  rows_ = told[4 * first_rank];
  check_rows("inputs", first_rank, rows_, micro_batches);
  if (kind != StepKind::forward) {
    const std::int64_t targets = told[4 * last_rank + 1];
    check_rows("targets", last_rank, targets, micro_batches);
    check(targets == rows_, "pipeline: targets: expected {} rows, as the inputs have, found {}",
          rows_, targets);
  }
  kind_ = combine_fingerprints(static_cast<std::uint64_t>(told[4 * first_rank + 2]),
                               kind == StepKind::train ? 1 : 0);
  if (kind != StepKind::train) return;
  for (int rank = 0; rank < group.size(); ++rank)
    kind_ = combine_fingerprints(kind_, static_cast<std::uint64_t>(told[4 * rank + 3]));
}

layout::Range Batch::rows_of(int micro_batch) const {
  return {rows_ * micro_batch / micro_batches_, rows_ * (micro_batch + 1) / micro_batches_};
}

double Batch::share_of(int micro_batch) const {
  return static_cast<double>(rows_of(micro_batch).length()) / static_cast<double>(rows_);
}

Tensors Batch::cut(const Tensors& tensors, int micro_batch) const {
  const layout::Range rows = rows_of(micro_batch);
  Tensors parts;
  for (const at::Tensor& tensor : tensors)
    parts.push_back(tensor.detach().narrow(0, rows.begin, rows.length()));
  return parts;
}

}  // namespace lockstep::pipeline
