#include "parallel/pipeline/batch.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "global/global_tensor.h"
#include "parallel/write_watch.h"

#include <lockstep/base/error.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

namespace lockstep::pipeline {
namespace {

constexpr std::int64_t most_dims = 32;

}  // namespace

Specs specs_of(const Tensors& tensors) {
  Specs specs;
  for (const at::Tensor& tensor : tensors)
    specs.push_back({tensor.scalar_type(), tensor.requires_grad(), tensor.sizes().vec()});
  return specs;
}

std::string describe(const Specs& specs) {
  std::vector<std::string> parts;
  for (const TensorMeta& spec : specs)
    parts.push_back(formatted("{} [{}]", c10::toString(spec.dtype), listed(spec.sizes, ", ")));
  return parts.empty() ? "nothing" : join(parts);
}

at::Tensor message_of(const Specs& specs, const std::string& of) {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(specs.size())};
  for (const TensorMeta& spec : specs) {
    numbers.push_back(static_cast<std::int64_t>(spec.dtype));
    numbers.push_back(spec.requires_grad ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(spec.sizes.size()));
    numbers.insert(numbers.end(), spec.sizes.begin(), spec.sizes.end());
  }
  check(static_cast<std::int64_t>(numbers.size()) <= spec_numbers,
        "{}: expected tensors that {} numbers describe, found {}", of, spec_numbers,
        describe(specs));
  at::Tensor message = at::zeros({spec_numbers}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), message.mutable_data_ptr<std::int64_t>());
  return message;
}

Specs specs_in(const at::Tensor& message, const std::string& of) {
  const std::int64_t* numbers = message.const_data_ptr<std::int64_t>();
  std::int64_t at = 0;
  const auto next = [&](std::int64_t least, std::int64_t most) {
    const std::int64_t number = at < spec_numbers ? numbers[at++] : -1;
    if (number < least || number > most)
      throw Mismatch(
          formatted("{}: expected a description of tensors, found number {}", of, number));
    return number;
  };
  constexpr std::int64_t most = std::int64_t{1} << 48;
  Specs specs(static_cast<std::size_t>(next(1, spec_numbers)));
  for (TensorMeta& spec : specs) {
    spec.dtype = static_cast<at::ScalarType>(
        next(0, static_cast<std::int64_t>(at::ScalarType::NumOptions) - 1));
    spec.requires_grad = next(0, 1) == 1;
    spec.sizes.resize(static_cast<std::size_t>(next(0, most_dims)));
    for (std::int64_t& size : spec.sizes) size = next(0, most);
  }
  return specs;
}

namespace {

// Special values instead of a number of rows.
enum Rows : std::int64_t {
  not_here = -1,
  no_tensors = -2,
  no_rows = -3,
  different = -4,
  want_gradients = -5
};

// The values that each rank contributes.
struct BatchInfo {
  std::int64_t inputs = 0;   // rows
  std::int64_t targets = 0;  // rows
  std::int64_t sizes = 0;
  std::int64_t mode = 0;
  std::int64_t call = 0;
  std::int64_t fewest_rows = 0;
};
constexpr std::int64_t batch_info_numbers = sizeof(BatchInfo) / sizeof(std::int64_t);

const char* name_of(std::int64_t call) {
  constexpr std::array names{"step()", "step() inside no_sync()", "evaluate()", "forward()"};
  const auto place = static_cast<std::size_t>(call);
  return place < names.size() ? names[place] : "an unknown function";  // another rank's number
}

std::int64_t call_of(StepKind kind, bool stays_local) {
  if (kind == StepKind::train) return stays_local ? 1 : 0;
  return kind == StepKind::evaluate ? 2 : 3;
}

// Without this check, messages of different kinds of calls could be exchanged.
void check_same_call(std::span<const BatchInfo> ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].call != ranks[0].call)
      throw parallel::ComparedMismatch(
          formatted("pipeline: rank 0 called {} where rank {} called {}", name_of(ranks[0].call),
                    rank, name_of(ranks[rank].call)));
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

// `what`: "step(): inputs". `where`: " on rank 2", or an empty string in a group of one rank.
void check_rows(const std::string& what, const std::string& where, std::int64_t rows,
                int micro_batches) {
  check(rows != Rows::no_tensors, "{}: expected tensors{}, found none", what, where);
  check(rows != Rows::no_rows,
        "{}: expected tensors with rows{}, found one without dims or undefined", what, where);
  check(rows != Rows::different,
        "{}: expected tensors with equally many rows{}, found different ones", what, where);
  check(rows != Rows::want_gradients,
        "{}: expected tensors that require no gradient{}, found one that does: step() computes "
        "gradients of parameters alone; make what computes this tensor a part of the model, or "
        "pass detach()",
        what, where);
  check(rows >= micro_batches, "{}: expected a row for each of {} micro-batches, found {}", what,
        micro_batches, rows);
}

}  // namespace

Batch::Batch(Group& group, StepKind kind, BatchView given, int micro_batches, int first_rank,
             int last_rank, std::optional<Duration> timeout)
    : given_(given), micro_batches_(micro_batches) {
  BatchInfo own{.inputs = rows_of_batch(given.inputs, kind),
                .targets = rows_of_batch(given.targets, kind),
                .sizes = static_cast<std::int64_t>(fingerprint_of_sizes(given.inputs)),
                .mode = static_cast<std::int64_t>(given.mode),
                .call = call_of(kind, given.stays_local),
                .fewest_rows = given.fewest_rows};
  std::vector<BatchInfo> told(static_cast<std::size_t>(group.size()));
  group
      .all_gather(at::from_blob(told.data(), {group.size(), batch_info_numbers}, at::kLong),
                  at::from_blob(&own, {batch_info_numbers}, at::kLong),
                  {.tag = "rows of a batch", .timeout = timeout})
      .wait();
  check_same_call(told);
  const auto of = [&](int rank) { return told[static_cast<std::size_t>(rank)]; };
  rows_ = of(first_rank).inputs;
  if (rows_ > 0)
    micro_batches_ = static_cast<int>(
        std::min<std::int64_t>({micro_batches_, kind == StepKind::train ? micro_batches_ : rows_,
                                of(first_rank).fewest_rows, of(last_rank).fewest_rows}));
  const std::string call = name_of(own.call);
  const auto where = [&](int rank) {
    return group.size() == 1 ? std::string() : formatted(" on rank {}", rank);
  };
  check_rows(call + ": inputs", where(first_rank), rows_, micro_batches_);
  if (kind != StepKind::forward) {
    const std::int64_t targets = of(last_rank).targets;
    check_rows(call + ": targets", where(last_rank), targets, micro_batches_);
    check(targets == rows_, "{}: targets: expected {} rows, as the inputs have, found {}", call,
          rows_, targets);
  }
  check(micro_batches_ > 0,
        "{}: inputs: expected a batch on every rank of data(), found {} rows here and no batch on "
        "another rank",
        call, rows_);
  kind_ = combine_fingerprints(static_cast<std::uint64_t>(of(first_rank).sizes),
                               kind == StepKind::train ? 1 : 0);
  kind_ = combine_fingerprints(kind_, static_cast<std::uint64_t>(micro_batches_));
  for (const BatchInfo& rank : told)
    mode_ = combine_fingerprints(mode_, static_cast<std::uint64_t>(rank.mode));
  kind_ = combine_fingerprints(kind_, mode_);
}

std::int64_t rows_of_batch(const Tensors* tensors, StepKind kind) {
  if (tensors == nullptr) return Rows::not_here;
  if (tensors->empty()) return Rows::no_tensors;
  std::int64_t rows = Rows::not_here;
  for (const at::Tensor& tensor : *tensors) {
    if (!tensor.defined() || tensor.dim() == 0) return Rows::no_rows;
    if (rows != Rows::not_here && tensor.size(0) != rows) return Rows::different;
    rows = tensor.size(0);
  }
  if (kind == StepKind::train &&
      std::ranges::any_of(*tensors, [](const at::Tensor& one) { return one.requires_grad(); }))
    return Rows::want_gradients;
  return rows;
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

at::Tensor plain_loss(const at::Tensor& loss, StepKind kind) {
  const at::Tensor whole = global::plain(loss);
  check(whole.defined() && whole.numel() == 1 && whole.is_floating_point(),
        "loss: expected one number of a floating-point type, found {}",
        whole.defined() ? describe(specs_of({whole})) : "an undefined tensor");
  check(kind != StepKind::train || whole.requires_grad(),
        "loss: expected one that requires a gradient, found none");
  return whole;
}

Tensors joined(const std::vector<Tensors>& micro_batches) {
  std::vector<Tensors> all;  // by output
  for (const Tensors& outputs : micro_batches) {
    all.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) all[i].push_back(outputs[i]);
  }
  Tensors whole;
  for (const Tensors& parts : all)
    whole.push_back(parts.front().dim() == 0 ? at::stack(parts) : at::cat(parts));
  return whole;
}

}  // namespace lockstep::pipeline
