#include <lockstep/elastic/slot_gradients.h>

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "elastic/slot_layout.h"
#include "module/checks.h"
#include "parallel/backward_hooks.h"
#include "parallel/parallel_model.h"
#include "parallel/sharded/lazy_gradients.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/layout/tensor_slice.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {
namespace {

using layout::Range;

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

constexpr CallOptions slots_call{.tag = "slots"};

// Returns the sum of a tree node whose slots are all in `sums`, in order from index `next`. The
// result is stored in the first of these.
at::Tensor sum_of(Range node, const std::vector<std::pair<Range, at::Tensor>>& sums,
                  std::size_t& next) {
  if (sums[next].first.begin == node.begin && sums[next].first.end == node.end)
    return sums[next++].second;
  const std::int64_t middle = split_of(node);
  at::Tensor left = sum_of({node.begin, middle}, sums, next);
  return left.add_(sum_of({middle, node.end}, sums, next));
}

double sum_of(Range node, std::span<const double> values) {
  if (node.end - node.begin == 1) return values[static_cast<std::size_t>(node.begin)];
  const std::int64_t middle = split_of(node);
  return sum_of({node.begin, middle}, values) + sum_of({middle, node.end}, values);
}

// SlotGradients treats tensor-parallel parts as whole: each rank of `group` has the same parts.
void check_not_sharded(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    const bool is_part = dispatch::part_of(parameter) != nullptr && dispatch::has_memory(parameter);
    check(!dispatch::is_lazy(parameter) || is_part,
          "SlotGradients: expected parameters that are whole on every rank, found one that "
          "fully_shard() has sharded: pass the ParallelModel");
  }
}

void check_parameters(const std::vector<at::Tensor>& parameters) {
  check(!parameters.empty(), "SlotGradients: expected parameters, found none");
  for (const at::Tensor& parameter : parameters)
    check(parameter.is_floating_point() &&
              parameter.scalar_type() == parameters.front().scalar_type() &&
              parameter.device() == parameters.front().device(),
          "SlotGradients: expected parameters of one floating-point dtype on one device, found {} "
          "and {}",
          parameters.front().toString(), parameter.toString());
}

// Collective. Returns the range of each parameter that each rank keeps.
std::vector<std::vector<Range>> ranges_of_all(Group& group, const std::vector<Part>& parts) {
  std::vector<std::int64_t> own;
  for (const Part& part : parts)
    own.insert(own.end(), {part.slice.range.begin, part.slice.range.end});
  const auto all = modules::numbers_of_all(group, own, slots_call);
  std::vector<std::vector<Range>> ranges(static_cast<std::size_t>(group.size()));
  for (std::size_t i = 0; i < all.size(); i += 2)
    ranges[i / own.size()].push_back({all[i], all[i + 1]});
  return ranges;
}

// Returns the module's parameters in the order of the parts.
std::vector<at::Tensor> parameters_of(const torch::nn::Module& module,
                                      const std::vector<Part>& parts) {
  std::vector<at::Tensor> parameters;
  const std::vector<NamedParameter> all = unique_parameters(module);
  for (const Part& part : parts) {
    const auto found = std::ranges::find(all, part.name, &NamedParameter::name);
    check(found != all.end() && found->tensor.numel() == layout::numel_of(part.slice.box),
          "SlotGradients: expected ranges of the module's parameters, found {}", part.name);
    parameters.push_back(found->tensor);
  }
  return parameters;
}

// Returns the elements of a gradient in the order in which ranges count them.
at::Tensor in_order(const at::Tensor& gradient, const std::vector<int>& dim_order) {
  if (dim_order.empty() || gradient.dim() == 1) return gradient.reshape({-1});
  return gradient.permute(std::vector<std::int64_t>(dim_order.begin(), dim_order.end()))
      .reshape({-1});
}

}  // namespace

// Sums are flat, in the order of the layout.
struct SlotGradients::State {
  State(Group of, std::int64_t count, std::vector<at::Tensor> tensors,
        std::vector<Part> parts_of_rank)
      : group(std::move(of)),
        slots(count),
        parameters(std::move(tensors)),
        parts(std::move(parts_of_rank)),
        own(slots_of_rank(count, group.rank(), group.size())),
        next(own.begin) {
    std::vector<std::int64_t> elements;
    for (const at::Tensor& parameter : parameters) elements.push_back(parameter.numel());
    layout = is_divided() ? SlotLayout::divided(ranges_of_all(group, parts))
                          : SlotLayout::whole(elements, group.size());
  }

  [[nodiscard]] bool is_divided() const { return !parts.empty(); }

  // Throws if a forgotten no_sync() or zero_grad() has spoilt the gradients of a slot.
  void check_of_slot() const {
    const auto reduced = last_sum.lock();
    for (const at::Tensor& parameter : parameters) {
      const at::Tensor& gradient = parameter.grad();
      check(!parallel::is_averaged(parameter) || (!is_divided() && !gradient.defined()),
            "SlotGradients::take: the last backward() has averaged its gradients over the ranks: "
            "call backward() of slots inside the handle's no_sync()");
      check(reduced == nullptr || is_divided() || !gradient.defined() ||
                gradient.storage().unsafeGetStorageImpl() != reduced.get(),
            "SlotGradients::take: the gradients of the last reduce() are still there, and the "
            "backward() of this slot has added to them: call zero_grad() before the first slot");
    }
  }

  [[nodiscard]] at::Tensor taken() const {
    at::Tensor flat =
        at::zeros({layout.length()}, parameters.front().options().requires_grad(false));
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const bool is_there = dispatch::has_gradient(parameters[i]);
      at::Tensor gradient = std::exchange(parameters[i].mutable_grad(), at::Tensor());
      if (!is_there) gradient.reset();
      gradients.push_back(gradient);
      if (!gradient.defined()) continue;
      check(!gradient.is_sparse(), "SlotGradients: expected dense gradients, found a sparse one");
      gradients.back() =
          in_order(gradient, is_divided() ? parts[i].slice.dim_order : std::vector<int>{});
      for (const std::int64_t counts : layout.counts())
        flat.narrow(0, counts + static_cast<std::int64_t>(i), 1).fill_(1);
    }
    for (const auto& [entry, elements, offset] : layout.pieces())
      if (const at::Tensor& gradient = gradients[static_cast<std::size_t>(entry)];
          gradient.defined())
        flat.narrow(0, offset, elements.length())
            .copy_(gradient.narrow(0, elements.begin, elements.length()));
    return flat;
  }

  void push(std::int64_t slot, at::Tensor sum) {
    Range node{slot, slot + 1};
    while (!sums.empty() && is_node(slots, {sums.back().first.begin, node.end})) {
      node.begin = sums.back().first.begin;
      sum = sums.back().second.add_(sum);
      sums.pop_back();
    }
    sums.emplace_back(node, std::move(sum));
  }

  [[nodiscard]] std::vector<Range> nodes_of(int rank) const {
    return nodes_within(slots, slots_of_rank(slots, rank, group.size()));
  }

  // Returns the sums of all ranks for this rank's chunk.
  [[nodiscard]] std::vector<std::pair<Range, at::Tensor>> exchanged() {
    std::vector<std::int64_t> outgoing, incoming;
    std::vector<at::Tensor> pieces;
    std::vector<Range> nodes;
    const std::int64_t width = layout.chunk(group.rank()).length();
    for (int rank = 0; rank < group.size(); ++rank) {
      const Range part = layout.chunk(rank);
      outgoing.push_back(part.length() * std::ssize(sums));
      for (const auto& [node, sum] : sums)
        pieces.push_back(sum.narrow(0, part.begin, part.length()));
      const std::vector<Range> theirs = nodes_of(rank);
      incoming.push_back(width * std::ssize(theirs));
      nodes.insert(nodes.end(), theirs.begin(), theirs.end());
    }
    const at::TensorOptions options = parameters.front().options().requires_grad(false);
    at::Tensor input = pieces.empty() ? at::empty({0}, options) : at::cat(pieces);
    at::Tensor output = at::empty({width * std::ssize(nodes)}, options);
    group.all_to_all(output, input, incoming, outgoing, slots_call).wait();
    std::vector<std::pair<Range, at::Tensor>> all;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      all.emplace_back(nodes[i], output.narrow(0, static_cast<std::int64_t>(i) * width, width));
    return all;
  }

  // Returns the final sums of this rank's chunk (of everything, with one rank).
  [[nodiscard]] at::Tensor reduced_chunk(double divisor) {
    const auto all = group.size() == 1 ? std::move(sums) : exchanged();
    std::size_t first = 0;
    at::Tensor sum = sum_of({0, slots}, all, first);
    sum.narrow(0, 0, layout.gradients(group.rank()).length()).div_(divisor);
    return sum;
  }

  [[nodiscard]] at::Tensor gathered(const at::Tensor& chunk) {
    if (group.size() == 1) return chunk;
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < group.size(); ++rank) counts.push_back(layout.chunk(rank).length());
    at::Tensor whole = at::empty({layout.length()}, chunk.options());
    group.all_gather(whole, chunk.contiguous(), counts, slots_call).wait();
    return whole;
  }

  // Distributes `sum`, which covers `range` of the flat tensor, to the gradients of `tensors`.
  void give(const at::Tensor& sum, Range range, std::int64_t counts,
            const std::vector<at::Tensor>& tensors) {
    last_sum = WeakStorage(sum.storage().getWeakStorageImpl());
    const at::Tensor given =
        sum.narrow(0, counts - range.begin, std::ssize(parameters)).to(at::kCPU, at::kDouble);
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].mutable_grad() = at::Tensor();
    for (const auto& [entry, elements, offset] : layout.pieces()) {
      if (offset < range.begin || offset >= range.end) continue;
      const at::Tensor& to = tensors[static_cast<std::size_t>(entry)];
      if (given[entry].item<double>() > 0)
        to.mutable_grad() = sum.narrow(0, offset - range.begin, elements.length()).view(to.sizes());
    }
  }

  Group group;
  const std::int64_t slots;
  const std::vector<at::Tensor> parameters;
  const std::vector<Part> parts;  // empty: every rank has all of each
  const Range own;
  SlotLayout layout;
  std::int64_t next;                                             // next slot to take
  WeakStorage last_sum{c10::intrusive_ptr<c10::StorageImpl>()};  // of the last reduce()
  std::vector<std::pair<Range, at::Tensor>> sums;                // largest tree nodes so far
};

SlotGradients::SlotGradients(Group group, std::int64_t slots, std::vector<at::Tensor> parameters) {
  check(slots > 0, "SlotGradients: expected at least one slot, found {}", slots);
  check_not_sharded(parameters);
  check_parameters(parameters);
  state_ =
      std::make_unique<State>(std::move(group), slots, std::move(parameters), std::vector<Part>{});
}

SlotGradients::SlotGradients(std::int64_t slots, const ParallelModel& model) {
  check(slots > 0, "SlotGradients: expected at least one slot, found {}", slots);
  const Mesh& mesh = model.mesh();
  const std::vector<TrainedParts>& trained = ParallelModelParts::of(model).trained;
  const bool has_others = mesh.size("pp") > 1 || mesh.size("ep") > 1 || mesh.size("cp") > 1;
  check(trained.size() == 1 && !has_others && mesh.layout().find("fsdp"),
        "SlotGradients: expected a model without experts on axes dp, fsdp and tp, with fsdp among "
        "them, found {} on {}",
        trained.size() > 1 ? "one with experts or stages" : "one", mesh.layout().describe());
  const HandleState& handle = *trained.front().handle;
  std::vector<Part> parts = handle.named_parameters();
  std::vector<at::Tensor> parameters = parameters_of(*trained.front().module, parts);
  check_parameters(parameters);
  state_ = std::make_unique<State>(handle.group(), slots, std::move(parameters), std::move(parts));
}

SlotGradients::~SlotGradients() = default;

std::int64_t SlotGradients::begin() const { return state_->own.begin; }
std::int64_t SlotGradients::end() const { return state_->own.end; }

std::int64_t SlotGradients::most() const {
  return (state_->slots + state_->group.size() - 1) / state_->group.size();
}

void SlotGradients::take(std::int64_t slot) {
  at::NoGradGuard no_gradients;
  check(slot == state_->next && slot < state_->own.end,
        "SlotGradients::take: expected slot {} of {} to {}, found {}", state_->next,
        state_->own.begin, state_->own.end - 1, slot);
  state_->check_of_slot();
  state_->push(slot, state_->taken());
  ++state_->next;
}

void SlotGradients::reduce(double divisor) {
  at::NoGradGuard no_gradients;
  State& state = *state_;
  check(state.next == state.own.end,
        "SlotGradients::reduce: expected all slots from {} to {} to be taken, found {}",
        state.own.begin, state.own.end - 1, state.next - state.own.begin);
  const at::Tensor chunk = state.reduced_chunk(divisor);
  reset();
  if (!state.is_divided())
    return state.give(state.gathered(chunk), {0, state.layout.length()},
                      state.layout.counts().front(), state.parameters);
  std::vector<at::Tensor> tensors;
  for (const Part& part : state.parts) tensors.push_back(part.tensor);
  const int rank = state.group.rank();
  state.give(chunk, state.layout.chunk(rank), state.layout.counts()[static_cast<std::size_t>(rank)],
             tensors);
}

std::vector<double> SlotGradients::gather(std::span<const double> own) {
  State& state = *state_;
  check(std::ssize(own) == state.own.end - state.own.begin,
        "SlotGradients::gather: expected {} values, found {}", state.own.end - state.own.begin,
        own.size());
  std::vector<double> all(static_cast<std::size_t>(state.slots));
  std::ranges::copy(own, all.begin() + state.own.begin);
  // The zeros of the other ranks do not change any value.
  state.group.all_reduce(at::from_blob(all.data(), {state.slots}, at::kDouble), Op::sum, slots_call)
      .wait();
  return all;
}

void SlotGradients::reset() {
  state_->sums.clear();
  state_->next = state_->own.begin;
}

void SlotGradients::drop() {
  for (const at::Tensor& parameter : state_->parameters) parameter.mutable_grad() = at::Tensor();
}

double tree_sum(std::span<const double> values) {
  return values.empty() ? 0 : sum_of({0, std::ssize(values)}, values);
}

}  // namespace lockstep
