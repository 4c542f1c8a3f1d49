// ModuleRef: the module argument of every strategy.
//
//   Net net;                                  // TORCH_MODULE(Net)
//   lockstep::fully_shard(net, world);        // a holder: the handle keeps the module alive
//   lockstep::fully_shard(net.ptr(), world);  // a shared_ptr: the same
//   lockstep::fully_shard(*net, world);       // a reference: the module must outlive the handle
//
// Intended for function parameters; converts implicitly from all of these.
#pragma once

#include <lockstep/module/torchscript.h>

#include <concepts>
#include <memory>
#include <string_view>
#include <utility>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

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
