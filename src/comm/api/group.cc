#include <lockstep/comm/group.h>

#include "comm/api/arguments.h"
#include "comm/api/group_state.h"

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
Operand as_real(const at::Tensor& tensor) {
  if (!tensor.is_complex()) return Operand::borrowed(tensor);
  return Operand::owned(at::view_as_real(tensor.detach()));
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

Group::Group()
    : state_(std::make_shared<GroupState>(nullptr, GroupNames("one"), std::chrono::minutes(10))) {}

Group::Group(std::shared_ptr<Backend> backend, std::string name, Duration timeout)
    : state_(std::make_shared<GroupState>(std::move(backend), std::move(name), timeout)) {}

Group::Group(std::shared_ptr<GroupState> state) : state_(std::move(state)) {}

int Group::rank() const { return state_->rank(); }
int Group::size() const { return state_->size(); }
std::string_view Group::backend() const { return state_->backend_name(); }
const std::string& Group::name() const { return state_->name(); }
std::string Group::describe(int rank) const { return state_->names().rank(rank); }
Duration Group::timeout() const { return state_->timeout(); }
void Group::set_timeout(Duration timeout) { state_->set_timeout(timeout); }
GroupTraffic Group::traffic() const { return state_->traffic(); }
void Group::abort(std::string_view reason) { state_->abort(reason); }

Work Group::all_reduce(const at::Tensor& tensor, Op op, CallOptions options, Where where) {
  auto check = arguments_of(Collective::all_reduce, *state_);
  check.output(tensor);
  check.reduces(op, tensor.scalar_type());
  auto values = as_real(tensor);
  return state_->post(
      {.collective = Collective::all_reduce, .op = op, .input = *values, .output = *values},
      options, where);
}

Work Group::reduce(const at::Tensor& tensor, int root, Op op, CallOptions options, Where where) {
  auto check = arguments_of(Collective::reduce, *state_);
  check.root(root);
  if (is_root(root)) check.output(tensor);
  auto input = check.input(tensor);
  check.reduces(op, input->scalar_type());
  auto values = as_real(*input);
  return state_->post({.collective = Collective::reduce,
                       .op = op,
                       .root = root,
                       .input = *values,
                       .output = is_root(root) ? *values : no_tensor()},
                      options, where);
}

Work Group::broadcast(const at::Tensor& tensor, int root, CallOptions options, Where where) {
  auto check = arguments_of(Collective::broadcast, *state_);
  check.root(root);
  check.output(tensor);
  return state_->post(
      {.collective = Collective::broadcast, .root = root, .input = tensor, .output = tensor},
      options, where);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, CallOptions options,
                       Where where) {
  auto check = arguments_of(Collective::all_gather, *state_);
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.elements(output, "output", from->numel() * size(), "the input's times the number of ranks");
  check.apart(output, *from, from->numel() * rank());
  return state_->post({.collective = Collective::all_gather, .input = *from, .output = output},
                      options, where);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, Counts counts,
                       CallOptions options, Where where) {
  auto check = arguments_of(Collective::all_gather, *state_);
  auto all = check.counts(counts, "counts");
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.elements(*from, "input", counts[rank()], "this rank's count");
  check.elements(output, "output", all, "the sum of the counts");
  check.apart(output, *from, begin_of(counts, rank()));
  return state_->post({.collective = Collective::all_gather,
                       .input = *from,
                       .output = output,
                       .output_counts = all_equal(counts) ? Counts() : counts},
                      options, where);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op,
                           CallOptions options, Where where) {
  auto check = arguments_of(Collective::reduce_scatter, *state_);
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.reduces(op, from->scalar_type());
  check.elements(*from, "input", output.numel() * size(), "the output's times the number of ranks");
  check.apart(*from, output, output.numel() * rank());
  return state_->post({.collective = Collective::reduce_scatter,
                       .op = op,
                       .input = *as_real(*from),
                       .output = *as_real(output)},
                      options, where);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Counts counts, Op op,
                           CallOptions options, Where where) {
  auto check = arguments_of(Collective::reduce_scatter, *state_);
  auto all = check.counts(counts, "counts");
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.reduces(op, from->scalar_type());
  check.elements(output, "output", counts[rank()], "this rank's count");
  check.elements(*from, "input", all, "the sum of the counts");
  check.apart(*from, output, begin_of(counts, rank()));
  auto real_counts = as_real(all_equal(counts) ? Counts() : counts, *from);
  return state_->post({.collective = Collective::reduce_scatter,
                       .op = op,
                       .input = *as_real(*from),
                       .output = *as_real(output),
                       .input_counts = real_counts},
                      options, where);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input, CallOptions options,
                       Where where) {
  auto check = arguments_of(Collective::all_to_all, *state_);
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.divisible(*from, "input");
  check.elements(output, "output", from->numel(), "as many as the input");
  check.apart(output, *from, -1);
  return state_->post({.collective = Collective::all_to_all, .input = *from, .output = output},
                      options, where);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input, Counts output_counts,
                       Counts input_counts, CallOptions options, Where where) {
  auto check = arguments_of(Collective::all_to_all, *state_);
  auto out = check.counts(output_counts, "output counts");
  auto in = check.counts(input_counts, "input counts");
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.kept(input_counts[rank()], output_counts[rank()]);
  check.elements(*from, "input", in, "the sum of the input counts");
  check.elements(output, "output", out, "the sum of the output counts");
  check.apart(output, *from, -1);
  return state_->post({.collective = Collective::all_to_all,
                       .input = *from,
                       .output = output,
                       .input_counts = input_counts,
                       .output_counts = output_counts},
                      options, where);
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root, CallOptions options,
                   Where where) {
  auto check = arguments_of(Collective::gather, *state_);
  check.root(root);
  auto from = check.input(input);
  if (is_root(root)) {
    check.output(output);
    check.alike(output, *from);
    check.elements(output, "output", from->numel() * size(),
                   "the input's times the number of ranks");
    check.apart(output, *from, from->numel() * rank());
  } else {
    check.absent(output, "output");
  }
  return state_->post(
      {.collective = Collective::gather, .root = root, .input = *from, .output = output}, options,
      where);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                    CallOptions options, Where where) {
  auto check = arguments_of(Collective::scatter, *state_);
  check.root(root);
  check.output(output);
  auto from = Operand::borrowed(no_tensor());
  if (is_root(root)) {
    from = check.input(input);
    check.alike(output, *from);
    check.elements(*from, "input", output.numel() * size(),
                   "the output's times the number of ranks");
    check.apart(*from, output, output.numel() * rank());
  } else {
    check.absent(input, "input");
  }
  return state_->post(
      {.collective = Collective::scatter, .root = root, .input = *from, .output = output}, options,
      where);
}

Work Group::send(const at::Tensor& tensor, int destination, CallOptions options, Where where) {
  auto check = arguments_of(Collective::send, *state_);
  check.peer(destination);
  auto values = check.input(tensor);
  return state_->post({.collective = Collective::send, .root = destination, .input = *values},
                      options, where);
}

Work Group::recv(const at::Tensor& tensor, int source, CallOptions options, Where where) {
  auto check = arguments_of(Collective::recv, *state_);
  check.peer(source);
  check.output(tensor);
  return state_->post({.collective = Collective::recv, .root = source, .output = tensor}, options,
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
