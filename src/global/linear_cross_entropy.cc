#include <lockstep/global/linear_cross_entropy.h>

#include "base/check.h"
#include "base/format.h"
#include "global/checks.h"
#include "global/convert.h"
#include "global/global_tensor.h"
#include "global/mesh_context.h"

#include <lockstep/comm/call.h>
#include <lockstep/global/tensor.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

using global::PlacementList;
using global::SpecPtr;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The loss on this rank's tensors, computed in pieces of some rows.
struct ChunkedLoss {
  at::Tensor input;                     // [n, width]
  at::Tensor weight;                    // [own classes, width]
  at::Tensor target;                    // [n], with values from all classes
  std::int64_t classes = 0, first = 0;  // classes of all ranks; first class of this rank
  std::int64_t ignore_index = -100;
  std::int64_t rows = 64;  // rows per piece; equal on all ranks that share the classes
  // Reduce over the ranks with the other classes of the same rows, and over the ranks with other
  // rows.
  std::function<void(const at::Tensor&, Op)> reduce_classes, reduce_rows;
  bool wants_input = false, wants_weight = false;

  struct Result {
    at::Tensor loss;  // contribution of this rank's rows to the mean
    // Gradients: the contribution of this rank's classes; undefined if not wanted.
    at::Tensor input;
    at::Tensor weight;   // the gradient of weight is at least float32
    double divisor = 1;  // the caller must divide the gradients by it
  };
};

class ChunkedRun {
 public:
  explicit ChunkedRun(const ChunkedLoss& what)
      : what_(what),
        own_(what.weight.size(0)),
        dtype_(at::promote_types(what.input.scalar_type(), at::kFloat)),
        counted_(what.target.ne(what.ignore_index)) {
    global::check_range(
        at::where(counted_, what.target, 0), what.classes,
        formatted("linear_cross_entropy: expected targets from 0 to {}, or {} to ignore one",
                  what.classes - 1, what.ignore_index));
    const auto wide = what.input.options().dtype(dtype_);
    count_ = counted_.sum().to(dtype_);
    what.reduce_rows(count_, Op::sum);
    // Float16 cannot represent a probability divided by the count.
    divides_later_ = what.input.scalar_type() == at::kHalf;
    if (divides_later_) result_.divisor = std::max(count_.item<double>(), 1.0);
    loss_ = at::zeros({}, wide.dtype(at::kDouble));
    if (what.wants_input) result_.input = at::empty_like(what.input);
    if (what.wants_weight) result_.weight = at::zeros(what.weight.sizes(), wide);
  }

  ChunkedLoss::Result run() {
    const std::int64_t all = what_.input.size(0);
    for (std::int64_t begin = 0; begin < all; begin += what_.rows)
      add(begin, std::min(what_.rows, all - begin));
    result_.loss = loss_.to(dtype_).div_(count_);
    return std::move(result_);
  }

 private:
  void add(std::int64_t begin, std::int64_t rows) {
    const at::Tensor input = what_.input.narrow(0, begin, rows);
    const at::Tensor counted = counted_.narrow(0, begin, rows);
    at::Tensor place = what_.target.narrow(0, begin, rows) - what_.first;
    const at::Tensor elsewhere =
        place.lt(0).logical_or_(place.ge(own_)).logical_or_(counted.logical_not());
    place.masked_fill_(elsewhere, 0);
    place = place.unsqueeze(1);
    at::Tensor logits = logits_of(input);
    at::Tensor most =
        own_ == 0 ? at::full({rows}, -std::numeric_limits<double>::infinity(), logits.options())
                  : at::amax(logits, 1);
    what_.reduce_classes(most, Op::max);
    logits.sub_(most.unsqueeze(1));
    at::Tensor picked = own_ == 0 ? at::zeros({rows}, logits.options())
                                  : logits.gather(1, place).squeeze(1).masked_fill_(elsewhere, 0);
    logits.exp_();
    at::Tensor sums = at::stack({logits.sum(1), picked});
    what_.reduce_classes(sums, Op::sum);
    at::Tensor loss = sums[0].log().sub_(sums[1]);
    loss_.add_(loss.masked_fill_(counted.logical_not(), 0).sum(at::kDouble));
    if (!what_.wants_input && !what_.wants_weight) return;
    // Gradient of a row: (softmax - 1 at the target) / count.
    at::Tensor scale = counted.to(dtype_);
    if (!divides_later_) scale.div_(count_).masked_fill_(counted.logical_not(), 0);
    logits.mul_((scale / sums[0]).unsqueeze(1));
    if (own_ > 0)
      logits.scatter_add_(1, place, scale.neg().masked_fill_(elsewhere, 0).unsqueeze(1));
    add_gradients(logits, input, begin, rows);
  }

  // Uses one buffer for all pieces.
  at::Tensor logits_of(const at::Tensor& input) {
    const std::int64_t rows = input.size(0);
    if (!narrow_.defined() || narrow_.size(0) < rows) {
      narrow_ = at::empty({rows, own_}, input.options());
      if (input.scalar_type() != dtype_) wide_ = at::empty({rows, own_}, loss_options());
    }
    at::Tensor logits = narrow_.narrow(0, 0, rows);
    at::mm_out(logits, input, what_.weight.t());
    if (!wide_.defined()) return logits;
    return wide_.narrow(0, 0, rows).copy_(logits);
  }

  void add_gradients(const at::Tensor& logits, const at::Tensor& input, std::int64_t begin,
                     std::int64_t rows) {
    at::Tensor gradient = logits;
    if (wide_.defined()) gradient = narrow_.narrow(0, 0, rows).copy_(logits);
    if (what_.wants_input) {
      at::Tensor to = result_.input.narrow(0, begin, rows);
      at::mm_out(to, gradient, what_.weight);
    }
    if (!what_.wants_weight) return;
    if (divides_later_) {
      // A sum over many rows may overflow float16.
      result_.weight.addmm_(logits.t(), input.to(dtype_));
    } else if (wide_.defined()) {
      result_.weight.add_(at::mm(gradient.t(), input));
    } else {
      result_.weight.addmm_(gradient.t(), input);
    }
  }

  [[nodiscard]] at::TensorOptions loss_options() const {
    return what_.input.options().dtype(dtype_);
  }

  const ChunkedLoss& what_;
  const std::int64_t own_;
  const at::ScalarType dtype_;
  const at::Tensor counted_;
  bool divides_later_ = false;
  at::Tensor count_, loss_;
  at::Tensor narrow_, wide_;  // logits, in the input's dtype and in a wider one
  ChunkedLoss::Result result_;
};

// The layout of the three tensors on a mesh: axes that shard classes, and axes that shard rows.
struct Layout {
  explicit Layout(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target) {
    for (const at::Tensor* tensor : {&weight, &input, &target})
      if (!one) one = global::global_of(*tensor);
    if (one == nullptr) return;
    context = one->spec->context;
    const std::size_t axes = context->place().size();
    of_weight = of_input = of_target = of_gradient = of_loss = PlacementList(axes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      const auto number = static_cast<int>(axis);
      if (now(weight, axis).is_shard_of(0) && now(weight, axis).parts() == 1) {
        classes.push_back(number);
        of_weight[axis] = Shard(0);
        of_gradient[axis] = Partial();
      } else if (now(input, axis).is_shard_of(0) && now(input, axis).parts() == 1 &&
                 input.dim() > 1) {
        rows.push_back(number);
        of_input[axis] = of_target[axis] = of_gradient[axis] = Shard(0);
        of_loss[axis] = Partial();
      }
    }
  }

  static Placement now(const at::Tensor& tensor, std::size_t axis) {
    const global::GlobalTensor* found = global::global_of(tensor);
    return found == nullptr ? Placement() : found->spec->placements[axis];
  }

  // Returns this rank's part. Collective if the tensor has other placements.
  [[nodiscard]] at::Tensor local(const at::Tensor& tensor, const PlacementList& wanted) const {
    if (context == nullptr) return tensor.detach();
    global::GlobalTensor* found = global::global_of(tensor);
    if (found != nullptr) {
      global::check_is_fresh(*found, "linear_cross_entropy");
      check(found->spec->context->has_ranks_of(*context),
            "linear_cross_entropy: expected tensors of one mesh, found mesh {} and another mesh {}",
            context->name(), found->spec->context->name());
      return global::values_in(tensor, wanted);
    }
    check(context->options.load().replicate_plain,
          "linear_cross_entropy: expected global tensors on mesh {}, found a plain one; "
          "distribute() makes it global, and GlobalOptions::replicate_plain lets it count as "
          "replicated",
          context->name());
    context->plain_check.look(tensor, "linear_cross_entropy", context->all());
    const SpecPtr spec = context->spec(context->replicated(), tensor.sizes(), tensor.strides(),
                                       tensor.scalar_type(), tensor.device());
    return global::converted(tensor.detach(), *spec, wanted);
  }

  // Makes a global tensor of `sizes`, of which `values` is this rank's part.
  [[nodiscard]] at::Tensor made_global(at::Tensor values, at::IntArrayRef sizes,
                                       const PlacementList& placements) const {
    if (context == nullptr) return values;
    const SpecPtr spec = context->spec(placements, sizes, c10::contiguous_strides(sizes),
                                       values.scalar_type(), values.device());
    return global::wrap(std::move(values), spec, one->mesh);
  }

  void reduce(const std::vector<int>& axes, const at::Tensor& tensor, Op op) const {
    for (int axis : axes) global::all_reduce(*context, axis, tensor, op);
  }

  const global::GlobalTensor* one = nullptr;  // null: all are plain
  global::MeshContext* context = nullptr;
  std::vector<int> classes, rows;
  PlacementList of_weight, of_input, of_target, of_gradient, of_loss;
};

std::int64_t first_class(const Layout& layout, std::int64_t classes) {
  if (layout.classes.empty()) return 0;
  at::Tensor numbers = at::arange(classes);
  for (int axis : layout.classes) {
    const global::AxisPlace& place = layout.context->place()[static_cast<std::size_t>(axis)];
    numbers = global::cut(numbers, Shard(0), place.size, place.coordinate);
  }
  return numbers.numel() == 0 ? classes : numbers[0].item<std::int64_t>();
}

// Gradients, stored until backward() takes each of them once.
struct Waiting : torch::CustomClassHolder {
  at::Tensor input, weight;
  double divisor = 1;
  at::ScalarType dtype = at::kFloat;  // dtype of the gradients that backward() returns
};

struct LinearCrossEntropy : Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& target,
                            const LinearCrossEntropyOptions& options, bool wants_input,
                            bool wants_weight) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Layout layout(input, weight, target);
    ChunkedLoss loss;
    const at::Tensor local = layout.local(input, layout.of_input);
    loss.input = local.reshape({-1, weight.size(1)}).contiguous();
    loss.weight = layout.local(weight, layout.of_weight);
    loss.target = layout.local(target, layout.of_target).reshape({-1});
    loss.classes = weight.size(0);
    loss.first = first_class(layout, loss.classes);
    loss.ignore_index = options.ignore_index;
    loss.rows = options.rows > 0 ? options.rows : rows_at_once(layout, loss.classes);
    loss.reduce_classes = [&](const at::Tensor& tensor, Op op) {
      layout.reduce(layout.classes, tensor, op);
    };
    loss.reduce_rows = [&](const at::Tensor& tensor, Op op) {
      layout.reduce(layout.rows, tensor, op);
    };
    loss.wants_input = wants_input;
    loss.wants_weight = wants_weight;
    const auto found = run(loss, layout);
    auto waiting = c10::make_intrusive<Waiting>();
    waiting->divisor = found.divisor;
    waiting->dtype = weight.scalar_type();
    if (wants_input)
      waiting->input =
          layout.made_global(found.input.view(local.sizes()), input.sizes(), layout.of_gradient);
    if (wants_weight) {
      PlacementList placements = layout.of_weight;
      for (int axis : layout.rows) placements[static_cast<std::size_t>(axis)] = Partial();
      waiting->weight = layout.made_global(found.weight, weight.sizes(), placements);
    }
    context->saved_data["waiting"] = c10::IValue::make_capsule(std::move(waiting));
    return layout.made_global(found.loss, {}, layout.of_loss);
  }

  // If this rank fails, other ranks may not fail, and would wait for it in the next collective:
  // abort the groups.
  static ChunkedLoss::Result run(const ChunkedLoss& loss, const Layout& layout) {
    try {
      return ChunkedRun(loss).run();
    } catch (const std::exception& error) {
      if (layout.context != nullptr) layout.context->end_groups("linear_cross_entropy", error);
      throw;
    }
  }

  static std::int64_t rows_at_once(const Layout& layout, std::int64_t classes) {
    constexpr std::int64_t bytes = 8 << 20, least = 64;
    std::int64_t ranks = 1;
    for (int axis : layout.classes)
      ranks *= layout.context->place()[static_cast<std::size_t>(axis)].size;
    const std::int64_t own = std::max<std::int64_t>((classes + ranks - 1) / ranks, 1);
    return std::max(least, bytes / (own * static_cast<std::int64_t>(sizeof(float))));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& waiting = static_cast<Waiting&>(*context->saved_data.at("waiting").toCapsule());
    check(!at::GradMode::is_enabled(),
          "linear_cross_entropy: backward() with create_graph is not supported");
    const at::Tensor scale = global::plain(gradients[0]).to(at::kDouble).div(waiting.divisor);
    // Reading a device's number would wait for the device.
    const bool is_one = scale.is_cpu() && scale.item<double>() == 1;
    // A pipeline requests the gradient of the input first, and that of the weight later.
    const auto taken = [&](at::Tensor& place) {
      at::Tensor values = std::exchange(place, at::Tensor());
      check(values.defined(),
            "linear_cross_entropy: expected one backward(), found a second one of the same loss");
      // At least float32, because a loss scale may exceed the range of float16.
      if (!is_one)
        values = values.to(at::promote_types(values.scalar_type(), at::kFloat)).mul_(scale);
      return values.to(waiting.dtype);
    };
    variable_list found(6);  // one per argument of forward()
    if (context->needs_input_grad(0)) found[0] = taken(waiting.input);
    if (context->needs_input_grad(1)) found[1] = taken(waiting.weight);
    return found;
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& target,
                                const LinearCrossEntropyOptions& options) {
  check(weight.dim() == 2 && input.dim() >= 1 && input.size(-1) == weight.size(1),
        "linear_cross_entropy: expected an input [..., width] and a weight [classes, width], found "
        "[{}] and [{}]",
        listed(input.sizes(), ", "), listed(weight.sizes(), ", "));
  check(target.sizes() == input.sizes().slice(0, input.sizes().size() - 1) &&
            target.scalar_type() == at::kLong,
        "linear_cross_entropy: expected int64 targets of sizes [{}], found {} of [{}]",
        listed(input.sizes().slice(0, input.sizes().size() - 1), ", "),
        c10::toString(target.scalar_type()), listed(target.sizes(), ", "));
  check(input.scalar_type() == weight.scalar_type(),
        "linear_cross_entropy: expected an input of the weight's dtype {}, found {}",
        c10::toString(weight.scalar_type()), c10::toString(input.scalar_type()));
  check(options.rows >= 0, "linear_cross_entropy: expected rows >= 0, found {}", options.rows);
  const bool trains = at::GradMode::is_enabled();
  return LinearCrossEntropy::apply(input, weight, target, options, trains && input.requires_grad(),
                                   trains && weight.requires_grad());
}

}  // namespace lockstep
