// How C10dBackend performs each operation.
#include "comm/backends/c10d/backend.h"

#include <lockstep/base/error.h>
#include <lockstep/layout/tensor_slice.h>

#include "base/scope_exit.h"
#include "comm/backend/tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>

namespace lockstep::c10d_backend {
namespace {

at::Tensor bytes_of(const at::Tensor& tensor) { return flat(tensor).view(at::kByte); }

// Returns views of `whole`, one per rank.
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

// Returns the sizes in bytes of the parts of an all_to_all operand.
std::vector<std::int64_t> byte_counts(const at::Tensor& tensor,
                                      const std::vector<std::int64_t>& counts, int size) {
  std::vector<std::int64_t> result;
  for (int rank = 0; rank < size; ++rank) {
    result.push_back(part_elements(counts, tensor.numel(), size, rank) *
                     static_cast<std::int64_t>(tensor.element_size()));
  }
  return result;
}

// Returns true if values are divided before they are added: sums in half would overflow more often.
bool divides_first(const PostedCall& call) {
  return call.op == Op::average && call.input.scalar_type() == at::kHalf;
}

// Returns true if every rank should gather all inputs and combine them itself, which takes one
// round instead of two. With two ranks this sends no more bytes, but each rank computes the whole
// sum, which was slower from 1 MiB on.
bool goes_whole(const PostedCall& call, int size) {
  constexpr std::int64_t whole_bytes = 16 << 10, whole_bytes_of_two = 128 << 10;
  return static_cast<std::int64_t>(call.input.nbytes()) <=
         (size == 2 ? whole_bytes_of_two : whole_bytes);
}

}  // namespace

template <class Start>
void C10dBackend::await(const PostedCall& call, Start start) {
  c10::intrusive_ptr<c10d::Work> work;
  const auto route = connection_->route_of(call);
  std::unique_lock lock(launching_);
  if (closed_) throw Aborted("the backend is closed");
  connection_->mark_next(static_cast<std::uint32_t>(call.fingerprint));
  work = start(route.group);
  if (call.launched) {
    work->synchronize();
    call.launched->checks.emplace_back([work] {
      (void)work->isCompleted();  // makes LibTorch query NCCL for errors
      if (auto error = work->exception()) std::rethrow_exception(error);
    });
    return;
  }
  ++running_;
  ScopeExit over([this] { --running_; });
  lock.unlock();
  connection_->finish(*work);
}

void C10dBackend::perform(const PostedCall& call) {
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
      return gather_to_root(call, call.output, call.input);
    case Collective::scatter:
      return scatter(call);
    case Collective::barrier:
      return barrier(call);
    case Collective::send:
    case Collective::recv:
      return message(call);
  }
}

// Without streams, backends round half precision at every addition on the host.
bool C10dBackend::summed_by_c10d(const PostedCall& call) const {
  if (call.op != Op::sum && call.op != Op::average) return false;
  switch (call.input.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
      return true;
    case at::kBFloat16:
    case at::kHalf:
      return has_streams() && !options_.float_sums;
    default:
      return false;
  }
}

void C10dBackend::all_reduce(const PostedCall& call) {
  auto output = flat(call.output);
  if (summed_by_c10d(call)) {
    if (divides_first(call)) output.div_(size_);
    std::vector<at::Tensor> tensors{output};
    await(call, [&](c10d::Backend& group) { return group.allreduce(tensors); });
    if (call.op == Op::average && !divides_first(call)) output.div_(size_);
    return;
  }
  if (goes_whole(call, size_)) return reduce_in_tree_into(output, all_inputs(call), call.op);
  const auto part = combined_share(call);
  if (part.numel() * size_ == output.numel()) return gather_evenly(call, output, part);
  auto padded = at::empty({part.numel() * size_}, output.options());
  gather_evenly(call, padded, part);
  output.copy_(padded.narrow(0, 0, output.numel()));
}

void C10dBackend::reduce(const PostedCall& call) {
  const bool is_root = call.output.defined();
  if (summed_by_c10d(call)) {
    const auto input = flat(call.input);
    std::vector<at::Tensor> sum{divides_first(call) ? input.div(size_) : input.clone()};
    c10d::ReduceOptions options;
    options.rootRank = call.root;
    await(call, [&](c10d::Backend& group) { return group.reduce(sum, options); });
    if (!is_root) return;
    if (call.op == Op::average && !divides_first(call)) sum.front().div_(size_);
    flat(call.output).copy_(sum.front());
    return;
  }
  if (goes_whole(call, size_)) {
    at::Tensor all;
    if (is_root) all = at::empty({size_ * call.input.numel()}, call.input.options());
    gather_to_root(call, all, call.input);
    if (is_root) reduce_in_tree_into(flat(call.output), parts_of(all, {}, size_), call.op);
    return;
  }
  const auto part = combined_share(call);
  at::Tensor padded;
  if (is_root) padded = at::empty({part.numel() * size_}, part.options());
  gather_to_root(call, padded, part);
  if (is_root) flat(call.output).copy_(padded.narrow(0, 0, call.output.numel()));
}

void C10dBackend::reduce_scatter(const PostedCall& call) {
  if (connection_->works_on_wholes() && call.input_counts.empty() && summed_by_c10d(call)) {
    auto input = flat(call.input);
    auto output = flat(call.output);
    if (divides_first(call)) input = input.div(size_);
    await(call, [&](c10d::Backend& group) { return group._reduce_scatter_base(output, input); });
    if (call.op == Op::average && !divides_first(call)) output.div_(size_);
    return;
  }
  reduce_in_tree_into(flat(call.output), dealt(call, call.input_counts), call.op);
}

std::vector<at::Tensor> C10dBackend::all_inputs(const PostedCall& call) {
  auto all = at::empty({size_ * call.input.numel()}, call.input.options());
  gather_evenly(call, all, call.input);
  return parts_of(all, {}, size_);
}

std::vector<at::Tensor> C10dBackend::dealt(const PostedCall& call,
                                           const std::vector<std::int64_t>& counts) {
  const auto mine = part_elements(counts, call.input.numel(), size_, rank_);
  auto received = at::empty({size_ * mine}, call.input.options());
  auto input = bytes_of(call.input);
  auto output = bytes_of(received);
  auto input_counts = byte_counts(call.input, counts, size_);
  auto output_counts = byte_counts(received, {}, size_);
  await(call, [&](c10d::Backend& group) {
    return group.alltoall_base(output, input, output_counts, input_counts);
  });
  return parts_of(received, {}, size_);
}

at::Tensor C10dBackend::combined_share(const PostedCall& call) {
  const auto counts = layout::shard_counts(call.input.numel(), size_);
  auto part = at::empty({counts.front()}, call.input.options());
  reduce_in_tree_into(part.narrow(0, 0, counts[rank_]), dealt(call, counts), call.op);
  return part;
}

void C10dBackend::broadcast(const PostedCall& call) {
  std::vector<at::Tensor> tensors{bytes_of(call.output)};
  c10d::BroadcastOptions options;
  options.rootRank = call.root;
  await(call, [&](c10d::Backend& group) { return group.broadcast(tensors, options); });
}

void C10dBackend::all_gather(const PostedCall& call) {
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

void C10dBackend::gather_evenly(const PostedCall& call, const at::Tensor& all,
                                const at::Tensor& mine) {
  std::vector<at::Tensor> input{bytes_of(mine)};
  if (connection_->works_on_wholes()) {
    auto output = bytes_of(all);
    return await(
        call, [&](c10d::Backend& group) { return group._allgather_base(output, input.front()); });
  }
  std::vector<std::vector<at::Tensor>> outputs{bytes_of(parts_of(all, {}, size_))};
  await(call, [&](c10d::Backend& group) { return group.allgather(outputs, input); });
}

void C10dBackend::all_to_all(const PostedCall& call) {
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

void C10dBackend::compare_counts(const PostedCall& call) {
  std::vector<std::int64_t> mine;
  for (int rank = 0; rank < size_; ++rank)
    mine.insert(mine.end(), {call.input_counts[rank], call.output_counts[rank]});
  const auto device = call.input.device();
  auto input = at::tensor(mine, at::kLong);
  if (call.launched) {
    const auto stream = stream_of(call, device);
    const c10::StreamGuard on(copy_stream(device));
    input = copied_to(device, input);  // the call's stream may wait for peers
    StreamPoint(device).precede(stream);
  } else {
    input = input.to(device);
  }
  auto output = at::empty_like(input);
  std::vector<std::int64_t> even;
  await(call, [&](c10d::Backend& group) { return group.alltoall_base(output, input, even, even); });
  const auto compare = [output, sent = call.input_counts, received = call.output_counts] {
    const auto theirs = output.cpu();
    const auto* said = theirs.const_data_ptr<std::int64_t>();
    for (int rank = 0; rank < static_cast<int>(sent.size()); ++rank)
      if (said[2 * rank] != received[rank] || said[2 * rank + 1] != sent[rank])
        throw CallDiffers(rank);
  };
  if (!call.launched) return compare();
  call.launched->steps.push_back(
      {StreamPoint(device), [compare, input, copies = copy_stream(device)] {
         const c10::StreamGuard on(copies);
         compare();
       }});
}

void C10dBackend::gather_to_root(const PostedCall& call, const at::Tensor& all,
                                 const at::Tensor& mine) {
  std::vector<at::Tensor> input{bytes_of(mine)};
  std::vector<std::vector<at::Tensor>> outputs;
  if (all.defined()) outputs.push_back(bytes_of(parts_of(all, {}, size_)));
  c10d::GatherOptions options;
  options.rootRank = call.root;
  await(call, [&](c10d::Backend& group) { return group.gather(outputs, input, options); });
}

void C10dBackend::scatter(const PostedCall& call) {
  std::vector<at::Tensor> output{bytes_of(call.output)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (call.input.defined()) inputs.push_back(bytes_of(parts_of(call.input, {}, size_)));
  c10d::ScatterOptions options;
  options.rootRank = call.root;
  await(call, [&](c10d::Backend& group) { return group.scatter(output, inputs, options); });
}

void C10dBackend::barrier(const PostedCall& call) {
  if (call.launched) {  // c10d's barrier would block the host
    std::vector<at::Tensor> one{at::zeros({1}, at::TensorOptions(*connection_->device()))};
    return await(call, [&](c10d::Backend& group) { return group.allreduce(one); });
  }
  c10d::BarrierOptions options;
  if (auto device = connection_->device()) options.device_ids = {device->index()};
  await(call, [&](c10d::Backend& group) { return group.barrier(options); });
}

void C10dBackend::message(const PostedCall& call) {
  bool sends = call.collective == Collective::send;
  std::vector<at::Tensor> tensors{bytes_of(sends ? call.input : call.output)};
  auto tag = static_cast<int>(call.fingerprint & 0x7fffffff);  // c10d's tags must not be negative
  const int peer = connection_->route_of(call).peer;
  await(call, [&](c10d::Backend& group) {
    return sends ? group.send(tensors, peer, tag) : group.recv(tensors, peer, tag);
  });
}

}  // namespace lockstep::c10d_backend
