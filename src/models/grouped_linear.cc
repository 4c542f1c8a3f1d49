#include "models/grouped_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Runs one product per group, which needs no padding, unlike one batched product. The first group
// has a product even without rows: if the weight is sharded, all ranks must gather it equally
// often.
void for_each_group(
    const std::vector<std::int64_t>& counts,
    const std::function<void(std::int64_t group, std::int64_t begin, std::int64_t count)>& run) {
  std::int64_t begin = 0;
  for (std::size_t group = 0; group < counts.size(); ++group) {
    run(static_cast<std::int64_t>(group), begin, counts[group]);
    begin += counts[group];
  }
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const std::vector<std::int64_t>& counts) {
    context->save_for_backward({rows, weight});
    context->saved_data["counts"] = counts;
    at::Tensor result = at::empty({rows.size(0), weight.size(1)}, rows.options());
    for_each_group(counts, [&](auto group, auto begin, auto count) {
      if (count == 0 && group > 0) return;
      at::Tensor part = result.narrow(0, begin, count);
      at::mm_out(part, rows.narrow(0, begin, count), weight.select(0, group).t());
    });
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "Mixture: backward(create_graph=true) is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weight = saved[1];
    const auto counts = context->saved_data["counts"].toIntVector();
    const at::Tensor of_result = gradients[0].contiguous();
    at::Tensor of_rows, of_weight;
    if (context->needs_input_grad(0)) of_rows = at::empty_like(rows);
    if (context->needs_input_grad(1)) of_weight = at::empty(weight.sizes(), of_result.options());
    for_each_group(counts, [&](auto group, auto begin, auto count) {
      if (count == 0 && of_weight.defined()) of_weight.select(0, group).zero_();
      if (count == 0 && group > 0) return;
      const at::Tensor given = of_result.narrow(0, begin, count);
      if (of_rows.defined()) {
        at::Tensor part = of_rows.narrow(0, begin, count);
        at::mm_out(part, given, weight.select(0, group));
      }
      if (of_weight.defined() && count > 0) {
        at::Tensor part = of_weight.select(0, group);
        at::mm_out(part, given.t(), rows.narrow(0, begin, count));
      }
    });
    return {of_rows, of_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                          const std::vector<std::int64_t>& counts) {
  return GroupedLinear::apply(rows, weight, counts);
}

std::vector<std::int64_t> numbers_of(const at::Tensor& counts) {
  const at::Tensor flat = counts.cpu().contiguous();
  const auto* first = flat.const_data_ptr<std::int64_t>();
  return {first, first + flat.numel()};
}

}  // namespace lockstep::models
