#include <lockstep/parallel/data/naive.h>

#include <lockstep/module/named_parameters.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

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
  for (const auto& parameter : unique_parameters(module)) {
    at::Tensor gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    at::Tensor values = gradient.contiguous();
    group.all_reduce(values, Op::average).wait();
    if (!values.is_alias_of(gradient)) gradient.copy_(values);
  }
}

}  // namespace lockstep::naive
