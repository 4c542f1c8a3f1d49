#include "support/accelerator/fallback.h"

#include "support/accelerator/machine.h"
#include "support/accelerator/result_shapes.h"
#include "support/accelerator/tensors.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::test::accelerator {
namespace {

using at::Tensor;
using torch::jit::Stack;

bool writes(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  if (alias == nullptr) return false;
  return alias->isWrite() ||
         std::ranges::any_of(alias->containedTypes(), [](auto& inner) { return inner.isWrite(); });
}

// Returns "add" for aten::add.out.
std::string short_name_of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name.substr(name.find("::") + 2);
}

Tensor empty_like(const Tensor& shape, int device) {
  const c10::Device there(device_type, static_cast<c10::DeviceIndex>(device));
  return at::empty_strided(shape.sizes(), shape.strides(),
                           at::TensorOptions().dtype(shape.scalar_type()).device(there));
}

// Only functional operators have the tags; this set also has their out= variants.
const std::set<std::string>& names_of_data_dependent() {
  static const std::set<std::string> names = [] {
    std::set<std::string> found;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (op &&
          (op->hasTag(at::Tag::data_dependent_output) || op->hasTag(at::Tag::dynamic_output_shape)))
        found.insert(name.name);
    }
    return found;
  }();
  return names;
}

// One call of an operation on tensors of the accelerator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack arguments)
      : op_(op), schema_(op.schema()), name_(short_name_of(op)), arguments_(std::move(arguments)) {
    find_device();
    move_host_arguments();
  }

  // Runs the operation and returns its results.
  Stack run() {
    if (is_view()) return run_view();
    draw_generators();
    std::optional<Stack> shapes;
    if (schema_.returns().empty())
      shapes.emplace();
    else if (!needs_values())
      shapes = result_shapes(op_, arguments_);
    find_results_among_arguments();
    return shapes ? run_with_shapes(*shapes) : run_with_values();
  }

 private:
  void find_device();
  // 0-dim host tensors are passed by value, like arguments of kernels; index tensors are copied.
  void move_host_arguments();
  [[nodiscard]] bool is_view() const;
  // Computes only metadata, on CPU aliases whose values are not read.
  [[nodiscard]] Stack run_view() const;
  // Gives a random operation its own generator, seeded now.
  void draw_generators();
  [[nodiscard]] bool needs_values() const;
  // Finds the results of in-place and out= operations, which are arguments.
  void find_results_among_arguments();
  [[nodiscard]] Stack run_with_shapes(const Stack& shapes);
  // Blocks until the values exist, because the shapes of results, or results that are not tensors,
  // depend on them.
  [[nodiscard]] Stack run_with_values();
  [[nodiscard]] std::vector<Access> argument_accesses() const;
  [[nodiscard]] Stack argument_aliases(Aliases& aliases) const;

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  std::string name_;
  Stack arguments_;
  int device_ = -1;
  std::vector<int> argument_of_;  // of each result; -1: a new tensor
};

void Call::find_device() {
  for (const c10::IValue& argument : arguments_) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      if (!is_on_accelerator(tensor)) return;
      const int device = tensor.device().index();
      TORCH_CHECK(device_ < 0 || device_ == device, name_, " has tensors on sim:", device_,
                  " and sim:", device);
      TORCH_CHECK(tensor.layout() == at::kStrided, "sim has strided tensors only");
      device_ = device;
    });
    if (device_ < 0 && argument.isDevice() && argument.toDevice().type() == device_type) {
      const c10::impl::VirtualGuardImpl guard(device_type);
      const auto device = argument.toDevice();
      device_ = device.has_index() ? device.index() : guard.getDevice().index();
    }
  }
  TORCH_CHECK(device_ >= 0, name_, " has no tensor on the simulated accelerator");
}

void Call::move_host_arguments() {
  const bool takes_indices = name_.starts_with("index") || name_.starts_with("_index");
  const c10::Device there(device_type, static_cast<c10::DeviceIndex>(device_));
  for (c10::IValue& argument : arguments_)
    argument = with_tensors(argument, [&](const Tensor& tensor) -> Tensor {
      if (is_on_accelerator(tensor) || tensor.is_meta()) return tensor;
      if (tensor.dim() == 0) return tensor.detach().clone();
      TORCH_CHECK(takes_indices, name_, ": expected all tensors on one device, found ",
                  tensor.device(), " and ", there);
      return tensor.to(there);
    });
}

bool Call::is_view() const {
  return std::ranges::any_of(schema_.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite() && !writes(result);
  });
}

Tensor view_of(const Tensor& base, const Tensor& like) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), like.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return view;
}

Stack Call::run_view() const {
  Aliases aliases;
  Stack stack = argument_aliases(aliases);
  {
    const KernelScope scope;
    op_.callBoxed(stack);
  }
  const auto& first = arguments_.front();
  const Tensor base = first.isTensor() ? first.toTensor() : first.toTensorVector().front();
  for (c10::IValue& value : stack)
    value = with_tensors(value, [&](const Tensor& tensor) { return view_of(base, tensor); });
  return stack;
}

void Call::draw_generators() {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (schema_.arguments()[i].type()->str().find("Generator") == std::string::npos) continue;
    const c10::Device there(device_type, static_cast<c10::DeviceIndex>(device_));
    at::Generator generator = arguments_[i].isGenerator()
                                  ? arguments_[i].toGenerator()
                                  : at::globalContext().defaultGenerator(there);
    const std::lock_guard lock(generator.mutex());
    arguments_[i] =
        at::detail::createCPUGenerator(generator.get<at::CPUGeneratorImpl>()->random64());
  }
}

bool Call::needs_values() const {
  if (op_.operator_name().name == "aten::index") {  // tagged because of masks
    bool has_mask = false;
    for_each_tensor(arguments_[1], [&](const Tensor& index) {
      has_mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    return has_mask;
  }
  const bool has_tensors_only =
      std::ranges::all_of(schema_.returns(), [](const c10::Argument& result) {
        return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
               result.type()->isSubtypeOf(*c10::ListType::ofTensors());
      });
  return !has_tensors_only || names_of_data_dependent().contains(op_.operator_name().name);
}

void Call::find_results_among_arguments() {
  for (const c10::Argument& result : schema_.returns()) {
    int found = -1;
    for (std::size_t i = 0; i < arguments_.size() && result.alias_info() != nullptr; ++i) {
      const c10::Argument& argument = schema_.arguments()[i];
      if (writes(argument) && *argument.alias_info() == *result.alias_info())
        found = static_cast<int>(i);
    }
    argument_of_.push_back(found);
  }
}

std::vector<Access> Call::argument_accesses() const {
  // These operations move values without reading them.
  static const std::set<std::string> movers{"clone",     "cat",     "index_copy",
                                            "index_put", "scatter", "_index_put_impl_"};
  // These operations in place do not read the old values that they replace.
  static const std::set<std::string> fillers{"fill_",
                                             "zero_",
                                             "uniform_",
                                             "normal_",
                                             "random_",
                                             "bernoulli_",
                                             "exponential_",
                                             "log_normal_",
                                             "cauchy_",
                                             "geometric_",
                                             "index_copy_",
                                             "index_put_",
                                             "index_fill_",
                                             "scatter_",
                                             "masked_fill_",
                                             "masked_scatter_",
                                             "_index_put_impl_",
                                             "_foreach_zero_",
                                             "_foreach_copy_",
                                             "_cummax_helper",
                                             "_cummin_helper"};
  const bool moves = movers.contains(name_);
  const auto beta = schema_.argumentIndexWithName("beta");
  const bool ignores_self =
      beta && arguments_[*beta].isScalar() && arguments_[*beta].toScalar().equal(0);
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto& argument = schema_.arguments()[i];
    const bool keeps_values = !argument.is_out() && !fillers.contains(name_);
    const auto write = keeps_values ? AccessKind::update : AccessKind::write;
    const bool is_read =
        !moves && !argument.is_out() && !(ignores_self && argument.name() == "self");
    const auto read = is_read ? AccessKind::read : AccessKind::copy;
    for_each_tensor(arguments_[i], [&](const Tensor& tensor) {
      add_accesses(accesses, tensor, writes(argument) ? write : read);
    });
  }
  return accesses;
}

Stack Call::argument_aliases(Aliases& aliases) const {
  Stack stack;
  for (const c10::IValue& argument : arguments_)
    stack.push_back(with_tensors(argument, [&](const Tensor& tensor) {
      return is_on_accelerator(tensor) ? aliases.of(tensor) : tensor;
    }));
  move_device_arguments(stack, c10::kCPU);
  return stack;
}

// Copies the kernel's results to the memory of new tensors; results that are arguments are already
// written.
void copy_results(const Stack& targets, const Stack& values) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].isTensor() && targets[i].toTensor().defined()) {
      targets[i].toTensor().copy_(values[i].toTensor());
    } else if (targets[i].isTensorList()) {
      const auto to = targets[i].toTensorVector(), from = values[i].toTensorVector();
      for (std::size_t k = 0; k < to.size(); ++k) to[k].copy_(from[k]);
    }
  }
}

Stack Call::run_with_shapes(const Stack& shapes) {
  Stack results;
  for (std::size_t i = 0; i < argument_of_.size(); ++i) {
    if (argument_of_[i] < 0) {
      results.push_back(
          with_tensors(shapes[i], [&](const Tensor& shape) { return empty_like(shape, device_); }));
      continue;
    }
    const c10::IValue& argument = arguments_[argument_of_[i]];
    if (schema_.arguments()[argument_of_[i]].is_out() && argument.isTensor() &&
        argument.toTensor().sizes() != shapes[i].toTensor().sizes())
      argument.toTensor().resize_(shapes[i].toTensor().sizes());
    results.push_back(argument);
  }
  std::vector<Access> accesses = argument_accesses();
  Aliases aliases;
  Stack input = argument_aliases(aliases), targets;
  for (std::size_t i = 0; i < results.size(); ++i) {
    targets.emplace_back();
    if (argument_of_[i] >= 0) continue;
    targets.back() = with_tensors(results[i], [&](const Tensor& tensor) {
      add_accesses(accesses, tensor, AccessKind::write);
      return aliases.of(tensor);
    });
  }
  launch_kernel({.stream = current_actor(device_),
                 .name = name_,
                 .accesses = std::move(accesses),
                 .run = [op = op_, input = std::move(input), targets = std::move(targets)] {
                   Stack stack = input;
                   op.callBoxed(stack);
                   copy_results(targets, stack);
                 }});
  return results;
}

Stack Call::run_with_values() {
  Aliases aliases;
  const auto values = std::make_shared<Stack>(argument_aliases(aliases));
  const auto is_complete = std::make_shared<bool>(false);
  auto& machine = Machine::get();
  const Actor stream = current_actor(device_);
  launch_kernel({.stream = stream,
                 .name = name_,
                 .accesses = argument_accesses(),
                 .run = [op = op_, values, is_complete] {
                   op.callBoxed(*values);
                   *is_complete = true;
                 }});
  machine.synchronize(machine.record(stream), name_);
  TORCH_CHECK(*is_complete, name_, " failed on the simulated accelerator");
  Stack results;
  for (std::size_t i = 0; i < argument_of_.size(); ++i) {
    if (argument_of_[i] >= 0) {
      results.push_back(arguments_[argument_of_[i]]);
      continue;
    }
    results.push_back(with_tensors((*values)[i], [&](const Tensor& value) {
      Tensor result = empty_like(value, device_);
      std::vector<Access> accesses;
      add_accesses(accesses, result, AccessKind::write);
      launch_kernel({.stream = stream,
                     .name = name_ + " (result)",
                     .accesses = std::move(accesses),
                     .run = [value, alias = Aliases().of(result)] { alias.copy_(value); }});
      return result;
    }));
  }
  return results;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  Stack arguments(stack->end() - count, stack->end());
  stack->erase(stack->end() - count, stack->end());
  for (c10::IValue& result : Call(op, std::move(arguments)).run())
    stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

void prefer_cpu_kernels() {
  using Key = c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  static std::vector<c10::RegistrationHandleRAII> registrations;
  // The composite kernels of these operations call convolution_overrideable on this device type.
  const std::set<std::string> others{"aten::convolution", "aten::convolution_backward"};
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !name.name.starts_with("aten::") ||
        op->hasKernelForDispatchKey(Key::PrivateUse1))
      continue;
    const bool has_composite = op->hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
                               op->hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
    const bool has_both = has_composite && op->hasKernelForDispatchKey(Key::CPU);
    if (!has_both && !(others.contains(name.name) && name.overload_name.empty())) continue;
    registrations.push_back(dispatcher.registerImpl(
        name, Key::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&fallback>(),
        std::nullopt, nullptr, "simulated accelerator"));
  }
}

}  // namespace lockstep::test::accelerator
