#include <lockstep/comm/group.h>

#include "base/format.h"
#include "comm/api/group_state.h"
#include "comm/backend/posted_call.h"
#include "comm/kernels/combine.h"

#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/MaybeOwned.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace lockstep {
namespace {

// The caller's tensor, or a tensor that was made from it.
using Operand = c10::MaybeOwned<at::Tensor>;

// Returns why the tensor's memory does not contain its values in order, and what to pass instead;
// empty if it does.
std::string_view objection_to(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return "is zeros without memory; pass a clone() of it";
  if (!tensor.is_contiguous()) return "is not contiguous; pass a contiguous tensor";
  if (tensor.is_conj()) return "is a conjugated view; pass its resolve_conj()";
  if (tensor.is_neg()) return "is a negated view; pass its resolve_neg()";
  return {};
}

// Checks of the arguments that a user passed to an operation of a group. They run before anything
// is sent; each throws InvalidArgument with one line that names the operation, the expected value
// and the value found.
class Arguments {
 public:
  Arguments(Collective collective, const GroupState& state)
      : collective_(collective),
        name_(name_of(collective)),
        group_(state.name()),
        rank_(state.rank()),
        size_(state.size()) {}

  // Checks a tensor that is only read. Returns it, or a copy if it is not contiguous.
  [[nodiscard]] Operand input(const at::Tensor& tensor) const {
    plain(tensor, "input");
    if (objection_to(tensor).empty()) return Operand::borrowed(tensor);
    const auto values = tensor._is_zerotensor() ? tensor.detach().clone() : tensor.detach();
    return Operand::owned(values.resolve_conj().resolve_neg().contiguous());
  }

  // Checks a tensor that is written: it must be contiguous, and autograd must not record it.
  void output(const at::Tensor& tensor) const {
    plain(tensor, "output");
    if (const auto objection = objection_to(tensor); !objection.empty())
      refuse("the output {}, and copy from it", objection);
    unrecorded(tensor, "output");
  }

  // Checks that backward() does not pass through the tensor, for it would take the call for the
  // identity. A leaf may be written, for example a parameter that is broadcast, and so may a
  // number: usually it is a loss, whose average over the ranks is only printed.
  void unrecorded(const at::Tensor& tensor, std::string_view role) const {
    if (!at::GradMode::is_enabled() || !tensor.requires_grad() || tensor.is_leaf()) return;
    if (tensor.dim() == 0) return;
    const bool has_function = collective_ != Collective::gather &&
                              collective_ != Collective::scatter && collective_ != Collective::recv;
    refuse(
        "the {} was computed from tensors that require grad, and this call has no derivative; "
        "{}pass its detach() if no gradient is needed",
        role,
        has_function ? formatted("call lockstep::{}(tensor, group), or ", name_) : std::string());
  }

  // Checks that the tensor is undefined.
  void absent(const at::Tensor& tensor, std::string_view role) const {
    if (tensor.defined()) refuse("the {} must be undefined on ranks that are not the root", role);
  }

  void root(int root) const {
    if (root < 0 || root >= size_) refuse("root {} is not one of the ranks 0..{}", root, size_ - 1);
  }

  void peer(int peer) const {
    if (peer < 0 || peer >= size_) refuse("peer {} is not one of the ranks 0..{}", peer, size_ - 1);
    if (peer == rank_) refuse("the peer is this rank itself; a rank cannot send to itself");
  }

  // Unsigned integers above 8 bits can only be moved: ATen does not support arithmetic on them
  // everywhere.
  void reduces(Op op, at::ScalarType dtype) const {
    if (op > Op::bxor) refuse("operation number {} does not exist", static_cast<int>(op));
    const auto type = dtype_of(dtype);
    if (is_complex(type) ? op <= Op::average : kernels::can_combine(type, op)) return;
    refuse("{} is not defined for {}{}", name_of(op), c10::toString(dtype),
           op == Op::average ? "; it takes floating point only" : "");
  }
  void alike(const at::Tensor& output, const at::Tensor& input) const {
    if (output.scalar_type() != input.scalar_type()) {
      refuse("output and input must have the same dtype, found {} and {}",
             c10::toString(output.scalar_type()), c10::toString(input.scalar_type()));
    }
    if (output.device() != input.device())
      refuse("output and input must be on the same device, found {} and {}", output.device().str(),
             input.device().str());
  }

  // Checks that the tensor has `expected` elements; `why` ends the message.
  void elements(const at::Tensor& tensor, std::string_view role, std::int64_t expected,
                std::string_view why) const {
    if (tensor.numel() != expected)
      refuse("the {} must have {} ({}), found {}", role, counted(expected, "element"), why,
             tensor.numel());
  }

  void divisible(const at::Tensor& tensor, std::string_view role) const {
    if (tensor.numel() % size_ != 0)
      refuse("the {} cannot be divided evenly, {} over {}; pass counts", role,
             counted(tensor.numel(), "element"), counted(size_, "rank"));
  }

  // Checks that there is one count per rank and that no count is negative. Returns their sum.
  std::int64_t counts(std::span<const std::int64_t> counts, std::string_view role) const {
    if (std::ssize(counts) != size_)
      refuse("the {} must have an entry for each rank, {}, found {}", role, size_, counts.size());
    for (auto count : counts) {
      if (count < 0) refuse("the {} must not be negative, found {}", role, count);
    }
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }

  // Checks that a rank sends itself as many elements of an uneven all_to_all as it receives from
  // itself.
  void kept(std::int64_t sent, std::int64_t received) const {
    if (sent != received)
      refuse(
          "the counts of this rank for itself must agree, found {} in the input and {} in the "
          "output",
          sent, received);
  }

  // Checks that the two tensors share no memory, except that `part` may lie in `whole` at element
  // `own_place`. -1: no exception.
  void apart(const at::Tensor& whole, const at::Tensor& part, std::int64_t own_place) const {
    if (!whole.is_alias_of(part) || whole.numel() == 0 || part.numel() == 0) return;
    auto bytes = static_cast<std::int64_t>(whole.element_size());
    auto whole_begin = whole.storage_offset() * bytes;
    auto part_begin = part.storage_offset() * bytes;
    bool separate = part_begin + part.numel() * bytes <= whole_begin ||
                    whole_begin + whole.numel() * bytes <= part_begin;
    if (separate || (own_place >= 0 && part_begin == whole_begin + own_place * bytes)) return;
    refuse("input and output overlap{}",
           own_place >= 0 ? " other than at this rank's own part" : "");
  }

 private:
  template <class... Values>
  [[noreturn]] void refuse(std::string_view format, const Values&... values) const {
    const std::array<FormatArgument, sizeof...(Values)> list{FormatArgument(values)...};
    throw InvalidArgument(formatted("{} on group {} (rank {} of {}): {}", name_, group_, rank_,
                                    size_, formatted_from(format, list)));
  }

  void plain(const at::Tensor& tensor, std::string_view role) const {
    if (!tensor.defined()) refuse("the {} is undefined", role);
    if (tensor.layout() != at::kStrided)
      refuse("the {} is not dense (a sparse or other layout)", role);
    if (at::isQIntType(tensor.scalar_type()))
      refuse("the {} is quantised ({}), which is not supported", role,
             c10::toString(tensor.scalar_type()));
  }

  Collective collective_;
  std::string_view name_;
  std::string_view group_;
  int rank_;
  int size_;
};

using Counts = std::span<const std::int64_t>;

bool all_equal(Counts counts) {
  return std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
}

// Views complex numbers as pairs of real numbers, so that backends need no complex arithmetic.
Operand as_real(const at::Tensor& tensor) {
  if (!tensor.is_complex()) return Operand::borrowed(tensor);
  return Operand::owned(at::view_as_real(tensor.detach()));
}

// Returns the counts for the tensor that as_real(tensor) returns.
std::vector<std::int64_t> as_real(Counts counts, const at::Tensor& tensor) {
  std::vector<std::int64_t> result(counts.begin(), counts.end());
  if (tensor.is_complex()) std::ranges::for_each(result, [](auto& count) { count *= 2; });
  return result;
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
  const Arguments check(Collective::all_reduce, *state_);
  check.output(tensor);
  check.reduces(op, tensor.scalar_type());
  auto values = as_real(tensor);
  return state_->post({{.collective = Collective::all_reduce, .op = op}, *values, *values}, options,
                      where);
}

Work Group::reduce(const at::Tensor& tensor, int root, Op op, CallOptions options, Where where) {
  const Arguments check(Collective::reduce, *state_);
  check.root(root);
  if (is_root(root)) check.output(tensor);
  auto input = check.input(tensor);
  check.unrecorded(tensor, "input");  // on every rank, so that no rank waits for the root
  check.reduces(op, input->scalar_type());
  auto values = as_real(*input);
  return state_->post({{.collective = Collective::reduce, .op = op, .root = root},
                       *values,
                       is_root(root) ? *values : no_tensor()},
                      options, where);
}

Work Group::broadcast(const at::Tensor& tensor, int root, CallOptions options, Where where) {
  const Arguments check(Collective::broadcast, *state_);
  check.root(root);
  check.output(tensor);
  return state_->post({{.collective = Collective::broadcast, .root = root}, tensor, tensor},
                      options, where);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, CallOptions options,
                       Where where) {
  const Arguments check(Collective::all_gather, *state_);
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.elements(output, "output", from->numel() * size(), "the input's times the number of ranks");
  check.apart(output, *from, from->numel() * rank());
  return state_->post({{.collective = Collective::all_gather}, *from, output}, options, where);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, Counts counts,
                       CallOptions options, Where where) {
  const Arguments check(Collective::all_gather, *state_);
  auto all = check.counts(counts, "counts");
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.elements(*from, "input", counts[rank()], "this rank's count");
  check.elements(output, "output", all, "the sum of the counts");
  check.apart(output, *from, part_begin(counts, all, size(), rank()));
  return state_->post({{.collective = Collective::all_gather,
                        .output_counts = all_equal(counts) ? Counts() : counts},
                       *from,
                       output},
                      options, where);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op,
                           CallOptions options, Where where) {
  const Arguments check(Collective::reduce_scatter, *state_);
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.reduces(op, from->scalar_type());
  check.elements(*from, "input", output.numel() * size(), "the output's times the number of ranks");
  check.apart(*from, output, output.numel() * rank());
  return state_->post(
      {{.collective = Collective::reduce_scatter, .op = op}, *as_real(*from), *as_real(output)},
      options, where);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Counts counts, Op op,
                           CallOptions options, Where where) {
  const Arguments check(Collective::reduce_scatter, *state_);
  auto all = check.counts(counts, "counts");
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.reduces(op, from->scalar_type());
  check.elements(output, "output", counts[rank()], "this rank's count");
  check.elements(*from, "input", all, "the sum of the counts");
  check.apart(*from, output, part_begin(counts, all, size(), rank()));
  auto real_counts = as_real(all_equal(counts) ? Counts() : counts, *from);
  return state_->post(
      {{.collective = Collective::reduce_scatter, .op = op, .input_counts = real_counts},
       *as_real(*from),
       *as_real(output)},
      options, where);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input, CallOptions options,
                       Where where) {
  const Arguments check(Collective::all_to_all, *state_);
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.divisible(*from, "input");
  check.elements(output, "output", from->numel(), "as many as the input");
  check.apart(output, *from, -1);
  return state_->post({{.collective = Collective::all_to_all}, *from, output}, options, where);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input, Counts output_counts,
                       Counts input_counts, CallOptions options, Where where) {
  const Arguments check(Collective::all_to_all, *state_);
  auto out = check.counts(output_counts, "output counts");
  auto in = check.counts(input_counts, "input counts");
  check.output(output);
  auto from = check.input(input);
  check.alike(output, *from);
  check.kept(input_counts[rank()], output_counts[rank()]);
  check.elements(*from, "input", in, "the sum of the input counts");
  check.elements(output, "output", out, "the sum of the output counts");
  check.apart(output, *from, -1);
  return state_->post({{.collective = Collective::all_to_all,
                        .input_counts = input_counts,
                        .output_counts = output_counts},
                       *from,
                       output},
                      options, where);
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root, CallOptions options,
                   Where where) {
  const Arguments check(Collective::gather, *state_);
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
  return state_->post({{.collective = Collective::gather, .root = root}, *from, output}, options,
                      where);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                    CallOptions options, Where where) {
  const Arguments check(Collective::scatter, *state_);
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
  return state_->post({{.collective = Collective::scatter, .root = root}, *from, output}, options,
                      where);
}

Work Group::send(const at::Tensor& tensor, int destination, CallOptions options, Where where) {
  const Arguments check(Collective::send, *state_);
  check.peer(destination);
  auto values = check.input(tensor);
  return state_->post({{.collective = Collective::send, .root = destination}, *values}, options,
                      where);
}

Work Group::recv(const at::Tensor& tensor, int source, CallOptions options, Where where) {
  const Arguments check(Collective::recv, *state_);
  check.peer(source);
  check.output(tensor);
  return state_->post({{.collective = Collective::recv, .root = source}, no_tensor(), tensor},
                      options, where);
}

Work Group::barrier(CallOptions options, Where where) {
  return state_->post({{.collective = Collective::barrier}}, options, where);
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
