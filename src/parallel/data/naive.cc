#include <lockstep/parallel/data/naive.h>

#include <lockstep/module/named_parameters.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

namespace lockstep::naive {

void broadcast_parameters(torch::nn::Module& module, Group group) {
  at::NoGradGuard no_grad;
  auto send = [&](const at::Tensor& tensor) {
    at::Tensor values = tensor.detach().contiguous();
    group.broadcast(values).wait();
    if (!values.is_alias_of(tensor)) tensor.detach().copy_(values);
  };
  for (const auto& parameter : unique_parameters(module)) send(parameter.tensor);
  for (const auto& buffer : module.buffers()) send(buffer);
}

void average_gradients(torch::nn::Module& module, Group group) {
  at::NoGradGuard no_grad;
  // All copies come first, because autograd may give two parameters gradients in one memory.
  std::vector<std::pair<at::Tensor, at::Tensor>> averages;
  for (const auto& parameter : unique_parameters(module))
    if (const at::Tensor& gradient = parameter.tensor.grad(); gradient.defined())
      averages.emplace_back(gradient, gradient.clone(at::MemoryFormat::Contiguous));
  for (auto& [gradient, average] : averages) {
    group.all_reduce(average, Op::average).wait();
    gradient.copy_(average);
  }
}

}  // namespace lockstep::naive
