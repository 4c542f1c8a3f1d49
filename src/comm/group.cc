#include <lockstep/comm/group.h>

#include "comm/arguments.h"
#include "comm/group_state.h"

#include <lockstep/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep {
namespace {

using Counts = std::span<const std::int64_t>;

bool all_equal(Counts counts) {
  return std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
}

// Complex numbers are added as pairs, so that engines need not know them.
at::Tensor as_real(at::Tensor tensor) {
  return tensor.defined() && tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor;
}

// The counts of as_real's tensor.
std::vector<std::int64_t> as_real(Counts counts, const at::Tensor& tensor) {
  std::vector<std::int64_t> result(counts.begin(), counts.end());
  if (tensor.is_complex()) std::ranges::for_each(result, [](auto& count) { count *= 2; });
  return result;
}

Arguments arguments_of(Collective collective, const GroupState& state) {
  return {collective, state.name(), state.rank(), state.size()};
}

std::int64_t begin_of(Counts counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

}  // namespace

Group::Group() : state_(std::make_shared<GroupState>(nullptr, "one", std::chrono::minutes(10))) {}

Group::Group(std::shared_ptr<Backend> backend, std::string name, Duration timeout)
    : state_(std::make_shared<GroupState>(std::move(backend), std::move(name), timeout)) {}

int Group::rank() const { return state_->rank(); }
int Group::size() const { return state_->size(); }
std::string_view Group::backend() const { return state_->backend_name(); }
const std::string& Group::name() const { return state_->name(); }
Duration Group::timeout() const { return state_->timeout(); }
void Group::set_timeout(Duration timeout) { state_->set_timeout(timeout); }
void Group::abort(std::string_view reason) { state_->abort(reason); }

Work Group::all_reduce(at::Tensor tensor, Op op, CallOptions options, Where where) {
  auto check = arguments_of(Collective::all_reduce, *state_);
  auto values = check.output(std::move(tensor));
  check.reduces(op, values.scalar_type());
  values = as_real(std::move(values));
  return state_->post({.collective = Collective::all_reduce,
                       .op = op,
                       .input = values,
                       .output = std::move(values)},
                      options, where);
}

Work Group::reduce(at::Tensor tensor, int root, Op op, CallOptions options, Where where) {
  auto check = arguments_of(Collective::reduce, *state_);
  check.root(root);
  auto values = rank() == root ? check.output(tensor) : check.input(tensor);
  check.reduces(op, values.scalar_type());
  values = as_real(values);
  return state_->post({.collective = Collective::reduce,
                       .op = op,
                       .root = root,
                       .input = values,
                       .output = rank() == root ? values : at::Tensor()},
                      options, where);
}

Work Group::broadcast(at::Tensor tensor, int root, CallOptions options, Where where) {
  auto check = arguments_of(Collective::broadcast, *state_);
  check.root(root);
  auto values = check.output(tensor);
  return state_->post(
      {.collective = Collective::broadcast, .root = root, .input = values, .output = values},
      options, where);
}

Work Group::all_gather(at::Tensor output, const at::Tensor& input, CallOptions options,
                       Where where) {
  auto check = arguments_of(Collective::all_gather, *state_);
  auto to = check.output(output);
  auto from = check.input(input);
  check.alike(to, from);
  check.elements(to, "output", from.numel() * size(), "the input's times the number of ranks");
  check.apart(to, from, from.numel() * rank());
  return state_->post({.collective = Collective::all_gather, .input = from, .output = to}, options,
                      where);
}

Work Group::all_gather(at::Tensor output, const at::Tensor& input, Counts counts,
                       CallOptions options, Where where) {
  auto check = arguments_of(Collective::all_gather, *state_);
  auto all = check.counts(counts, "counts");
  auto to = check.output(output);
  auto from = check.input(input);
  check.alike(to, from);
  check.elements(from, "input", counts[rank()], "this rank's count");
  check.elements(to, "output", all, "the sum of the counts");
  check.apart(to, from, begin_of(counts, rank()));
  return state_->post({.collective = Collective::all_gather,
                       .input = from,
                       .output = to,
                       .output_counts = all_equal(counts) ? Counts() : counts},
                      options, where);
}

Work Group::reduce_scatter(at::Tensor output, const at::Tensor& input, Op op, CallOptions options,
                           Where where) {
  auto check = arguments_of(Collective::reduce_scatter, *state_);
  auto to = check.output(output);
  auto from = check.input(input);
  check.alike(to, from);
  check.reduces(op, from.scalar_type());
  check.elements(from, "input", to.numel() * size(), "the output's times the number of ranks");
  check.apart(from, to, to.numel() * rank());
  return state_->post({.collective = Collective::reduce_scatter,
                       .op = op,
                       .input = as_real(from),
                       .output = as_real(to)},
                      options, where);
}

Work Group::reduce_scatter(at::Tensor output, const at::Tensor& input, Counts counts, Op op,
                           CallOptions options, Where where) {
  auto check = arguments_of(Collective::reduce_scatter, *state_);
  auto all = check.counts(counts, "counts");
  auto to = check.output(output);
  auto from = check.input(input);
  check.alike(to, from);
  check.reduces(op, from.scalar_type());
  check.elements(to, "output", counts[rank()], "this rank's count");
  check.elements(from, "input", all, "the sum of the counts");
  check.apart(from, to, begin_of(counts, rank()));
  auto real_counts = as_real(all_equal(counts) ? Counts() : counts, from);
  return state_->post({.collective = Collective::reduce_scatter,
                       .op = op,
                       .input = as_real(from),
                       .output = as_real(to),
                       .input_counts = real_counts},
                      options, where);
}

Work Group::all_to_all(at::Tensor output, const at::Tensor& input, CallOptions options,
                       Where where) {
  auto check = arguments_of(Collective::all_to_all, *state_);
  auto to = check.output(output);
  auto from = check.input(input);
  check.alike(to, from);
  check.divisible(from, "input");
  check.elements(to, "output", from.numel(), "as many as the input");
  check.apart(to, from, -1);
  return state_->post({.collective = Collective::all_to_all, .input = from, .output = to}, options,
                      where);
}

Work Group::all_to_all(at::Tensor output, const at::Tensor& input, Counts output_counts,
                       Counts input_counts, CallOptions options, Where where) {
  auto check = arguments_of(Collective::all_to_all, *state_);
  auto out = check.counts(output_counts, "output counts");
  auto in = check.counts(input_counts, "input counts");
  auto to = check.output(output);
  auto from = check.input(input);
  check.alike(to, from);
  check.elements(from, "input", in, "the sum of the input counts");
  check.elements(to, "output", out, "the sum of the output counts");
  check.apart(to, from, -1);
  return state_->post({.collective = Collective::all_to_all,
                       .input = from,
                       .output = to,
                       .input_counts = input_counts,
                       .output_counts = output_counts},
                      options, where);
}

Work Group::gather(at::Tensor output, const at::Tensor& input, int root, CallOptions options,
                   Where where) {
  auto check = arguments_of(Collective::gather, *state_);
  check.root(root);
  auto from = check.input(input);
  at::Tensor to;
  if (rank() == root) {
    to = check.output(output);
    check.alike(to, from);
    check.elements(to, "output", from.numel() * size(), "the input's times the number of ranks");
    check.apart(to, from, from.numel() * rank());
  } else {
    check.absent(output, "output");
  }
  return state_->post({.collective = Collective::gather, .root = root, .input = from, .output = to},
                      options, where);
}

Work Group::scatter(at::Tensor output, const at::Tensor& input, int root, CallOptions options,
                    Where where) {
  auto check = arguments_of(Collective::scatter, *state_);
  check.root(root);
  auto to = check.output(output);
  at::Tensor from;
  if (rank() == root) {
    from = check.input(input);
    check.alike(to, from);
    check.elements(from, "input", to.numel() * size(), "the output's times the number of ranks");
    check.apart(from, to, to.numel() * rank());
  } else {
    check.absent(input, "input");
  }
  return state_->post(
      {.collective = Collective::scatter, .root = root, .input = from, .output = to}, options,
      where);
}

Work Group::send(const at::Tensor& tensor, int destination, CallOptions options, Where where) {
  auto check = arguments_of(Collective::send, *state_);
  check.peer(destination);
  return state_->post(
      {.collective = Collective::send, .root = destination, .input = check.input(tensor)}, options,
      where);
}

Work Group::recv(at::Tensor tensor, int source, CallOptions options, Where where) {
  auto check = arguments_of(Collective::recv, *state_);
  check.peer(source);
  return state_->post(
      {.collective = Collective::recv, .root = source, .output = check.output(tensor)}, options,
      where);
}

Work Group::barrier(CallOptions options, Where where) {
  return state_->post({.collective = Collective::barrier}, options, where);
}

at::Tensor Group::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  return state_->has_backend() ? state_->backend()->empty_shared(sizes, options)
                               : at::empty(sizes, options);
}

at::Tensor Group::empty_node_shared(at::IntArrayRef sizes, const at::TensorOptions& options,
                                    Where where) {
  return state_->has_backend() ? state_->empty_node_shared(sizes, options, where)
                               : at::empty(sizes, options);
}

}  // namespace lockstep
