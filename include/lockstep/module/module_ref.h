// ModuleRef: the module argument of every strategy.
//
//   Net net;                                  // TORCH_MODULE(Net)
//   lockstep::fully_shard(net, world);        // a holder: the handle keeps the module alive
//   lockstep::fully_shard(net.ptr(), world);  // a shared_ptr: the same
//   lockstep::fully_shard(*net, world);       // a reference: the module must outlive the handle
//
// Intended for function parameters; converts implicitly from all of these.
#pragma once

#include <concepts>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace torch::jit {
struct Module;
}

namespace lockstep {

// The compile-time error of the strategies for TorchScript modules.
template <typename Model>
concept TorchScript = std::same_as<std::remove_cvref_t<Model>, torch::jit::Module>;

template <TorchScript Model>
void refuse_torchscript() {
  static_assert(!TorchScript<Model>,
                "a torch::jit::Module is not a torch::nn::Module; wrap it: register its parameters "
                "in a torch::nn::Module, as examples/20_torchscript.cc does");
}

class ModuleRef {
 public:
  ModuleRef(torch::nn::Module& module) : module_(std::shared_ptr<void>(), &module) {}

  template <typename Impl>
    requires std::convertible_to<Impl*, torch::nn::Module*>
  ModuleRef(std::shared_ptr<Impl> module) : module_(std::move(module)) {}

  // Converts from a holder, as TORCH_MODULE makes it. An empty holder counts as a null pointer.
  template <typename Holder>
    requires requires(const Holder& holder) {
      { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
    }
  ModuleRef(const Holder& holder) {
    if constexpr (requires { holder.is_empty(); })
      if (holder.is_empty()) return;
    module_ = holder.ptr();
  }

  // Does not compile: the error message explains how to train a TorchScript module.
  template <TorchScript Model>
  ModuleRef(const Model& /*module*/) {
    refuse_torchscript<Model>();
  }

  // Returns the module; for a reference, a pointer without ownership. Throws InvalidArgument, which
  // begins with `caller`, if it is null.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> shared(std::string_view caller) const;

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace lockstep

#pragma GCC visibility pop
