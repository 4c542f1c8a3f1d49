#include "support/accelerator/result_shapes.h"

#include "support/accelerator/tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty_strided.h>

#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace lockstep::test::accelerator {
namespace {

using torch::jit::Stack;

std::mutex shapes_mutex;             // guards these two
std::map<std::string, Stack> known;  // by operation, shapes and numbers
// Operations that have no meta kernel in C++, or one that differs from CUDA's without rows.
std::set<std::string> without_meta{"aten::native_layer_norm", "aten::index_add", "aten::index_add_",
                                   "aten::index_add.out"};

std::string key_of(const std::string& name, const Stack& arguments) {
  std::ostringstream text;
  text << name;
  for (const c10::IValue& argument : arguments) {
    bool has_tensor = false;
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      has_tensor = true;
      text << '|' << tensor.scalar_type() << tensor.device().type()
           << tensor.unsafeGetTensorImpl()->is_wrapped_number() << tensor.sizes()
           << tensor.strides();
    });
    if (argument.isOptionalTensorList())
      for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector())
        text << (tensor ? '+' : '-');
    if (!has_tensor && !argument.isGenerator()) text << '|' << argument;
  }
  return text.str();
}

// Returns the arguments with each tensor replaced by one on `device`: without values on meta, with
// ones and zeros on the CPU.
Stack substituted(const Stack& arguments, c10::Device device) {
  std::map<c10::TensorImpl*, at::Tensor> made;
  Stack stack;
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) {
      stack.push_back(device.is_meta() ? c10::IValue()
                                       : c10::IValue(at::detail::createCPUGenerator(0)));
      continue;
    }
    stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
      if (!is_on_accelerator(tensor)) return tensor;
      at::Tensor& other = made[tensor.unsafeGetTensorImpl()];
      if (other.defined()) return other;
      other = at::empty_strided(tensor.sizes(), tensor.strides(),
                                at::TensorOptions().dtype(tensor.scalar_type()).device(device));
      if (device.is_cpu()) other.fill_(tensor.is_floating_point() || tensor.is_complex() ? 1 : 0);
      return other;
    }));
  }
  move_device_arguments(stack, device);
  return stack;
}

std::optional<Stack> on_meta(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack = substituted(arguments, c10::kMeta);
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;  // many meta kernels are in Python only
  }
  return stack;
}

std::optional<Stack> on_cpu(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack = substituted(arguments, c10::kCPU);
  try {
    op.callBoxed(stack);
  } catch (const c10::Error&) {
    return std::nullopt;  // ones and zeros do not suit every operation
  }
  for (c10::IValue& value : stack)
    value = with_tensors(value, [](const at::Tensor& tensor) {
      return at::empty_strided(tensor.sizes(), tensor.strides(),
                               tensor.options().device(at::kMeta));
    });
  return stack;
}

}  // namespace

void move_device_arguments(Stack& arguments, c10::Device device) {
  for (c10::IValue& argument : arguments)
    if (argument.isDevice() && argument.toDevice().type() == device_type) argument = device;
}

std::optional<Stack> result_shapes(const c10::OperatorHandle& op, const Stack& arguments) {
  const std::string name = toString(op.operator_name());
  const std::string key = key_of(name, arguments);
  bool has_meta = true;
  {
    const std::lock_guard lock(shapes_mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    has_meta = !without_meta.contains(name);
  }
  const KernelScope scope;
  std::optional<Stack> shapes;
  if (has_meta) shapes = on_meta(op, arguments);
  const bool lacks_meta = has_meta && !shapes;
  if (!shapes) shapes = on_cpu(op, arguments);
  const std::lock_guard lock(shapes_mutex);
  if (lacks_meta) without_meta.insert(name);
  if (shapes) known.emplace(key, *shapes);
  return shapes;
}

}  // namespace lockstep::test::accelerator
