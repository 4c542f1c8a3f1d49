#include "parallel/sharded/absent_gradients.h"

#include "base/format.h"
#include "dispatch/value_source.h"

#include <lockstep/base/error.h>

#include <ATen/ops/empty.h>

#include <utility>

namespace lockstep::sharded {

bool has_gradient(const at::Tensor& tensor) {
  const at::Tensor& gradient = tensor.grad();
  if (!gradient.defined() || !dispatch::is_lazy(gradient)) return gradient.defined();
  return dispatch::has_memory(gradient) || dispatch::source_of(gradient) != nullptr;
}

class AbsentGradients::Refusal final : public dispatch::StorageOwner {
 public:
  Refusal(std::string text, bool of_module) : text_(std::move(text)), of_module_(of_module) {}

  // An optimizer's own zero_grad() says nothing about a gradient of a slice, and needs memory where
  // it writes zeros.
  void pin(const dispatch::StorageUse& use) override {
    if (of_module_ || (use.operation != "aten::zero_" && use.operation != "aten::detach_"))
      refuse(use);
    storage->attach(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device)));
  }
  // module->zero_grad() detaches what it then forgets.
  void view(const dispatch::StorageUse& use) override {
    if (of_module_) refuse(use);
  }
  void written() override {}
  void unpin() noexcept override { storage->detach(); }

  std::unique_ptr<dispatch::LazyStorage> storage;
  std::int64_t bytes = 0;
  c10::Device device = at::kCPU;

 private:
  [[noreturn]] void refuse(const dispatch::StorageUse& use) const {
    throw InvalidArgument(formatted("{}: {}", use.operation, text_));
  }

  std::string text_;
  bool of_module_;
};

AbsentGradients::One AbsentGradients::made(const at::Tensor& like, bool of_module,
                                           const std::string& text) const {
  auto owner = std::make_shared<Refusal>(text, of_module);
  owner->bytes = static_cast<std::int64_t>(like.nbytes());
  owner->device = like.device();
  owner->storage = std::make_unique<dispatch::LazyStorage>(owner->bytes, like.device(), owner,
                                                           unit_.settings().key, text);
  at::Tensor tensor = owner->storage->place(like.scalar_type(), 0, like.sizes(), like.strides());
  return {std::move(owner), std::move(tensor)};
}

AbsentGradients::AbsentGradients(const Unit& unit) : unit_(unit) {
  for (std::size_t i = 0; i < unit.parameters().size(); ++i) {
    const auto& [name, tensor, aliases] = unit.parameters()[i];
    of_module_.push_back(
        made(tensor, true,
             formatted("the gradient of {} is not in the module, but in the handle of "
                       "fully_shard(): build the optimizer on the handle's parameters(), and use "
                       "the handle's zero_grad() and clip_grad_norm(); an optimizer with weight "
                       "decay may have decayed parameters before this error",
                       name)));
    of_slices_.push_back(
        made(unit.slices()[i], false,
             formatted("there is no gradient of {} yet: no backward() outside no_sync() since the "
                       "last zero_grad()",
                       name)));
    leave_in_module(static_cast<int>(i));
    hooks_.push_back(
        tensor.register_hook([parameter = tensor.unsafeGetTensorImpl()](const at::Tensor&) {
          if (dispatch::is_lazy(parameter->grad())) parameter->mutable_grad().reset();
        }));
  }
}

AbsentGradients::~AbsentGradients() {
  auto clear = [](const at::Tensor& tensor) {
    if (!has_gradient(tensor)) tensor.mutable_grad().reset();
  };
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    unit_.parameters()[i].tensor.remove_hook(hooks_[i]);
    clear(unit_.parameters()[i].tensor);
    clear(unit_.slices()[i]);
  }
}

void AbsentGradients::leave_in_module(int i) {
  auto place = static_cast<std::size_t>(i);
  unit_.parameters()[place].tensor.mutable_grad() = of_module_[place].tensor;
}

void AbsentGradients::leave_in_slice(int i) {
  auto place = static_cast<std::size_t>(i);
  at::Tensor& gradient = unit_.slices()[place].mutable_grad();
  if (!gradient.defined()) gradient = of_slices_[place].tensor;
}

}  // namespace lockstep::sharded
