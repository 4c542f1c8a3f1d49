#include "comm/api/functional/nonlinear.h"

#include "comm/api/functional/maps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace lockstep::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Reduction : torch::CustomClassHolder {
  Reduction(Site site, Op op) : site(std::move(site)), op(op) {}
  Site site;
  Op op;
};

using ReductionPointer = c10::intrusive_ptr<Reduction>;

constexpr const char* reduction_key = "reduction";

at::Tensor reduce_forward(AutogradContext* context, const at::Tensor& input,
                          const ReductionPointer& reduction) {
  context->saved_data[reduction_key] = c10::IValue::make_capsule(reduction);
  Passing passing(reduction->site, true);
  return combine(reduction->op)(passing, input);
}

Site site_of_backward(AutogradContext* context) {
  auto holder = context->saved_data.at(reduction_key).toCapsule();
  return static_cast<const Reduction&>(*holder).site.of_backward();
}

at::Tensor sum_over_ranks(const at::Tensor& tensor, const Site& site) {
  return perform(tensor, site, combine(Op::sum), combine(Op::sum));
}

struct Extreme : torch::autograd::Function<Extreme> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ReductionPointer& reduction) {
    auto output = reduce_forward(context, input, reduction);
    context->save_for_backward({input, output});
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto saved = context->get_saved_variables();
    auto site = site_of_backward(context);
    at::Tensor share;
    {
      at::NoGradGuard no_grad;
      auto mine = saved[0].eq(saved[1]).to(gradients[0].scalar_type());
      share = mine / sum_over_ranks(mine, site);
    }
    return {sum_over_ranks(gradients[0], site) * share, at::Tensor()};
  }
};

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const ReductionPointer& reduction) {
    context->save_for_backward({input});
    return reduce_forward(context, input, reduction);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto input = context->get_saved_variables()[0];
    auto site = site_of_backward(context);
    auto all = perform(input.unsqueeze(0), site, join(0, {}), cut(0, {}, Op::sum));
    int rank = site.group.rank(), size = site.group.size();
    auto others = at::cat({all.narrow(0, 0, rank), all.narrow(0, rank + 1, size - rank - 1)});
    return {sum_over_ranks(gradients[0], site) * others.prod(0), at::Tensor()};
  }
};

template <class Function>
at::Tensor apply_reduction(const at::Tensor& input, const Site& site, Op op) {
  if (!Site::records(input)) return perform(input, site, combine(op), combine(op));
  return Function::apply(input, c10::make_intrusive<Reduction>(site, op));
}

}  // namespace

at::Tensor extreme(const at::Tensor& input, const Site& site, Op op) {
  return apply_reduction<Extreme>(input, site, op);
}

at::Tensor product(const at::Tensor& input, const Site& site) {
  return apply_reduction<Product>(input, site, Op::product);
}

}  // namespace lockstep::functional
