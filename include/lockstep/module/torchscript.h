// The compile-time error of the strategies for TorchScript modules.
#pragma once

#include <concepts>
#include <type_traits>

#pragma GCC visibility push(default)

namespace torch::jit {
struct Module;
}

namespace lockstep {

template <typename Model>
concept TorchScript = std::same_as<std::remove_cvref_t<Model>, torch::jit::Module>;

template <TorchScript Model>
void refuse_torchscript() {
  static_assert(!TorchScript<Model>,
                "a torch::jit::Module is not a torch::nn::Module; wrap it: register its parameters "
                "in a torch::nn::Module, as examples/19_torchscript.cc does");
}

}  // namespace lockstep

#pragma GCC visibility pop
