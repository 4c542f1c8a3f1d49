#include "parallel/tensor/gradient_marks.h"

#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"
#include "parallel/backward_hooks.h"

#include <utility>

namespace lockstep::tensor_parallel {
namespace {

constexpr const char* text =
    "the gradients of a parallelized module are in handle.parameters(): clip them by the handle's "
    "clip_grad_norm(), and build the optimizer on the handle's parameters()";

}  // namespace

GradientMarks::GradientMarks() {
  dispatch::LazyStorage storage(sizeof(float), at::kCPU, {}, dispatch::key(), text);
  mark_ = storage.place(at::kFloat, 0, {1}, {1});
}

std::size_t GradientMarks::add(const at::Tensor& parameter, std::vector<at::Tensor> leaves) {
  entries_.push_back({decltype(Entry::parameter)(parameter.getIntrusivePtr()), std::move(leaves)});
  return entries_.size() - 1;
}

void GradientMarks::before_gradient(std::size_t number) {
  if (on_gradient_) on_gradient_();
  // Detects zeroing for all parameters, also for those without a gradient in this backward().
  const int backward = parallel::current_backward();
  if (std::exchange(last_backward_, backward) != backward) {
    if (auto watch = watch_.lock()) watch->check();
    forget_zeroed();
  }
  Entry& entry = entries_[number];
  auto parameter = entry.parameter.lock();
  if (parameter == nullptr) return;
  parameter->mutable_grad() = mark_;
  entry.is_marked = true;
}

void GradientMarks::forget_zeroed() {
  for (Entry& entry : entries_) {
    auto parameter = entry.parameter.lock();
    if (!entry.is_marked || parameter == nullptr || parameter->grad().defined()) continue;
    for (const at::Tensor& leaf : entry.leaves) leaf.mutable_grad().reset();
    entry.is_marked = false;
  }
}

void GradientMarks::clear() {
  if (auto watch = watch_.lock()) watch->check();
  for (Entry& entry : entries_) {
    entry.is_marked = false;
    if (auto parameter = entry.parameter.lock(); parameter != nullptr)
      parameter->mutable_grad().reset();
  }
}

}  // namespace lockstep::tensor_parallel
