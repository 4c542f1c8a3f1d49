#include "global/chunked_loss.h"

#include "base/format.h"
#include "global/range_check.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

namespace lockstep::global {
namespace {

class ChunkedRun {
 public:
  explicit ChunkedRun(const ChunkedLoss& what)
      : what_(what),
        own_(what.weight.size(0)),
        dtype_(at::promote_types(what.input.scalar_type(), at::kFloat)),
        counted_(what.target.ne(what.ignore_index)) {
    check_range(
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

}  // namespace

ChunkedLoss::Result ChunkedLoss::run() const { return ChunkedRun(*this).run(); }

}  // namespace lockstep::global
