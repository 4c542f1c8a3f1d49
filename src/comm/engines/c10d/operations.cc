// What C10dRunner makes of each operation.
#include "base/scope_exit.h"
#include "comm/engines/c10d/runner.h"

#include <lockstep/base/error.h>

#include "comm/backend/flat.h"
#include "comm/backend/reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <utility>

namespace lockstep::c10d_engine {
namespace {

at::Tensor bytes_of(const at::Tensor& tensor) { return flat(tensor).view(at::kByte); }

// Views of `whole`, one a rank.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, const std::vector<std::int64_t>& counts,
                                 int size) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (int rank = 0; rank < size; ++rank) {
    auto count = part_elements(counts, whole.numel(), size, rank);
    parts.push_back(flat(whole).narrow(0, begin, count));
    begin += count;
  }
  return parts;
}

std::vector<at::Tensor> bytes_of(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = bytes_of(tensor);
  return tensors;
}

// The sizes in bytes of the parts of an all_to_all operand.
std::vector<std::int64_t> byte_counts(const at::Tensor& tensor,
                                      const std::vector<std::int64_t>& counts, int size) {
  std::vector<std::int64_t> result;
  for (int rank = 0; rank < size; ++rank) {
    result.push_back(part_elements(counts, tensor.numel(), size, rank) *
                     static_cast<std::int64_t>(tensor.element_size()));
  }
  return result;
}

bool summed_by_engine(Op op, at::ScalarType dtype) {
  bool known = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
               dtype == at::kBFloat16 || dtype == at::kInt || dtype == at::kLong;
  return known && (op == Op::sum || op == Op::average);
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

// A copy to sum in: float for half precision, which is rounded once at the end.
at::Tensor working_copy(const at::Tensor& tensor) {
  return is_half(tensor) ? flat(tensor).to(at::kFloat) : flat(tensor).clone();
}

}  // namespace

template <class Start>
void C10dRunner::await(const PostedCall& call, Start start) {
  c10::intrusive_ptr<c10d::Work> work;
  const auto carrier = engine_->carrier_of(call);
  Lock lock(launching_);
  if (closed_) throw Aborted("the engine is closed");
  engine_->mark_next(static_cast<std::uint32_t>(call.fingerprint));
  work = start(carrier.group);
  ++running_;
  ScopeExit over([this] { --running_; });
  lock.unlock();
  engine_->finish(*work);
}

void C10dRunner::perform(const PostedCall& call) {
  at::NoGradGuard no_grad;
  if (call.collective != Collective::barrier && call.collective != Collective::all_to_all &&
      call.elements == 0)
    return;
  switch (call.collective) {
    case Collective::all_reduce:
      return all_reduce(call);
    case Collective::reduce:
      return reduce(call);
    case Collective::broadcast:
      return broadcast(call);
    case Collective::all_gather:
      return all_gather(call);
    case Collective::reduce_scatter:
      return reduce_scatter(call);
    case Collective::all_to_all:
      return all_to_all(call);
    case Collective::gather:
      return gather(call);
    case Collective::scatter:
      return scatter(call);
    case Collective::barrier:
      return barrier(call);
    case Collective::send:
    case Collective::recv:
      return message(call);
  }
}

at::Tensor C10dRunner::combined(const PostedCall& call, int root) {
  bool needed = root < 0 || root == rank_;
  if (!summed_by_engine(call.op, call.input.scalar_type())) {
    auto all = at::empty({size_ * call.input.numel()}, call.input.options());
    gather_evenly(call, all, call.input);
    return needed ? reduce_in_tree(parts_of(all, {}, size_), call.op) : at::Tensor();
  }
  std::vector<at::Tensor> sum{working_copy(call.input)};
  if (root < 0) {
    await(call, [&](c10d::Backend& group) { return group.allreduce(sum); });
  } else {
    c10d::ReduceOptions options;
    options.rootRank = root;
    await(call, [&](c10d::Backend& group) { return group.reduce(sum, options); });
  }
  if (call.op == Op::average) sum.front().div_(size_);
  return needed ? sum.front() : at::Tensor();
}

void C10dRunner::all_reduce(const PostedCall& call) {
  if (!summed_by_engine(call.op, call.input.scalar_type()) || is_half(call.input)) {
    flat(call.output).copy_(combined(call, -1));
    return;
  }
  std::vector<at::Tensor> tensors{flat(call.output)};
  await(call, [&](c10d::Backend& group) { return group.allreduce(tensors); });
  if (call.op == Op::average) tensors.front().div_(size_);
}

void C10dRunner::reduce(const PostedCall& call) {
  auto result = combined(call, call.root);
  if (call.output.defined()) flat(call.output).copy_(result);
}

void C10dRunner::reduce_scatter(const PostedCall& call) {
  if (engine_->works_on_wholes() && call.input_counts.empty() &&
      summed_by_engine(call.op, call.input.scalar_type()))
    return reduce_scatter_evenly(call);
  auto mine = parts_of(combined(call, -1), call.input_counts, size_).at(rank_);
  flat(call.output).copy_(mine);
}

void C10dRunner::reduce_scatter_evenly(const PostedCall& call) {
  bool half = is_half(call.input);
  auto input = half ? flat(call.input).to(at::kFloat) : flat(call.input);
  auto output = half ? at::empty({call.output.numel()}, input.options()) : flat(call.output);
  await(call, [&](c10d::Backend& group) { return group._reduce_scatter_base(output, input); });
  if (call.op == Op::average) output.div_(size_);
  if (half) flat(call.output).copy_(output);
}

void C10dRunner::broadcast(const PostedCall& call) {
  std::vector<at::Tensor> tensors{bytes_of(call.output)};
  c10d::BroadcastOptions options;
  options.rootRank = call.root;
  await(call, [&](c10d::Backend& group) { return group.broadcast(tensors, options); });
}

void C10dRunner::all_gather(const PostedCall& call) {
  auto parts = parts_of(call.output, call.output_counts, size_);
  std::int64_t most = 0;
  for (const auto& part : parts) most = std::max(most, part.numel());
  bool even = std::ranges::all_of(parts, [&](const auto& part) { return part.numel() == most; });
  if (even) return gather_evenly(call, call.output, call.input);
  auto padded = at::empty({size_ * most}, call.output.options());
  auto places = parts_of(padded, {}, size_);
  places.at(rank_).narrow(0, 0, call.input.numel()).copy_(flat(call.input));
  gather_evenly(call, padded, places.at(rank_).clone());
  for (int rank = 0; rank < size_; ++rank)
    parts[rank].copy_(places[rank].narrow(0, 0, parts[rank].numel()));
}

void C10dRunner::gather_evenly(const PostedCall& call, const at::Tensor& all,
                               const at::Tensor& mine) {
  std::vector<at::Tensor> input{bytes_of(mine)};
  if (engine_->works_on_wholes()) {
    auto output = bytes_of(all);
    return await(
        call, [&](c10d::Backend& group) { return group._allgather_base(output, input.front()); });
  }
  std::vector<std::vector<at::Tensor>> outputs{bytes_of(parts_of(all, {}, size_))};
  await(call, [&](c10d::Backend& group) { return group.allgather(outputs, input); });
}

void C10dRunner::all_to_all(const PostedCall& call) {
  if (call.input_counts.empty()) {
    if (call.elements == 0) return;
  } else {
    compare_counts(call);
  }
  auto input = bytes_of(call.input);
  auto output = bytes_of(call.output);
  auto input_counts = byte_counts(call.input, call.input_counts, size_);
  auto output_counts = byte_counts(call.output, call.output_counts, size_);
  await(call, [&](c10d::Backend& group) {
    return group.alltoall_base(output, input, output_counts, input_counts);
  });
}

void C10dRunner::compare_counts(const PostedCall& call) {
  std::vector<std::int64_t> mine;
  for (int rank = 0; rank < size_; ++rank)
    mine.insert(mine.end(), {call.input_counts[rank], call.output_counts[rank]});
  auto input = at::tensor(mine, at::kLong).to(call.input.device());
  auto output = at::empty_like(input);
  std::vector<std::int64_t> even;
  await(call, [&](c10d::Backend& group) { return group.alltoall_base(output, input, even, even); });
  const auto theirs = output.cpu();
  const auto* said = theirs.const_data_ptr<std::int64_t>();
  for (int rank = 0; rank < size_; ++rank) {
    if (said[2 * rank] != call.output_counts[rank] || said[2 * rank + 1] != call.input_counts[rank])
      throw CallDiffers(rank);
  }
}

void C10dRunner::gather(const PostedCall& call) {
  std::vector<at::Tensor> input{bytes_of(call.input)};
  std::vector<std::vector<at::Tensor>> outputs;
  if (call.output.defined()) outputs.push_back(bytes_of(parts_of(call.output, {}, size_)));
  c10d::GatherOptions options;
  options.rootRank = call.root;
  await(call, [&](c10d::Backend& group) { return group.gather(outputs, input, options); });
}

void C10dRunner::scatter(const PostedCall& call) {
  std::vector<at::Tensor> output{bytes_of(call.output)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (call.input.defined()) inputs.push_back(bytes_of(parts_of(call.input, {}, size_)));
  c10d::ScatterOptions options;
  options.rootRank = call.root;
  await(call, [&](c10d::Backend& group) { return group.scatter(output, inputs, options); });
}

void C10dRunner::barrier(const PostedCall& call) {
  c10d::BarrierOptions options;
  if (auto device = engine_->device()) options.device_ids = {device->index()};
  await(call, [&](c10d::Backend& group) { return group.barrier(options); });
}

void C10dRunner::message(const PostedCall& call) {
  bool sends = call.collective == Collective::send;
  std::vector<at::Tensor> tensors{bytes_of(sends ? call.input : call.output)};
  auto tag = static_cast<int>(call.fingerprint & 0x7fffffff);  // c10d's tags are not negative
  const int peer = engine_->carrier_of(call).peer;
  await(call, [&](c10d::Backend& group) {
    return sends ? group.send(tensors, peer, tag) : group.recv(tensors, peer, tag);
  });
}

}  // namespace lockstep::c10d_engine
