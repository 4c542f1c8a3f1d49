#include "parallel/sharded/lazy_gradients.h"

#include "base/check.h"
#include "base/format.h"
#include "comm/kernels/combine.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/part.h"
#include "optim/formats_kernel.h"
#include "optim/threads.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/backend.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace lockstep::sharded {
namespace {

constexpr std::int64_t piece_elements = 1 << 16;
constexpr std::int64_t buffer_bytes = 1 << 13;  // of numbers on their way to another dtype

void convert(c10::ScalarType dtype, const std::byte* from, c10::ScalarType wanted, void* to,
             std::int64_t count) {
  if (wanted == at::kFloat && (dtype == at::kBFloat16 || dtype == at::kHalf))
    return optim::widen(dtype, reinterpret_cast<const std::uint16_t*>(from),
                        static_cast<float*>(to), count);
  at::from_blob(to, {count}, wanted)
      .copy_(at::from_blob(const_cast<std::byte*>(from), {count}, dtype));
}

}  // namespace

LazyGradient::LazyGradient(at::Tensor rows, layout::Range range, c10::ScalarType dtype)
    : rows_(std::move(rows)), range_(range), dtype_(dtype) {
  check(rows_.size(0) <= kernels::max_ranks, "reduce_in_step: expected at most {} ranks, found {}",
        kernels::max_ranks, rows_.size(0));
  auto* begin = static_cast<const std::byte*>(rows_.const_data_ptr());
  for (std::int64_t rank = 0; rank < rows_.size(0); ++rank)
    inputs_.push_back(begin + (rank * rows_.size(1) + range.begin) * rows_.element_size());
}

std::shared_ptr<LazyGradient> LazyGradient::make(at::Tensor rows, layout::Range range,
                                                 c10::ScalarType dtype, c10::DispatchKey key,
                                                 dispatch::PartList parts) {
  std::shared_ptr<LazyGradient> gradient(new LazyGradient(std::move(rows), range, dtype));
  auto bytes = range.length() * static_cast<std::int64_t>(c10::elementSize(dtype));
  gradient->storage_ = std::make_unique<dispatch::LazyStorage>(
      bytes, at::kCPU, gradient, key, "this gradient has not been computed: use an operation",
      dispatch::record_of(std::move(parts)));
  return gradient;
}

at::Tensor LazyGradient::slice(std::int64_t offset, std::int64_t length) const {
  return storage_->place(dtype_, offset, {length}, {1});
}

void LazyGradient::settle() {
  if (storage_->is_used()) compute();
}

std::int64_t LazyGradient::bytes_an_element() const { return rows_.size(0) * rows_.element_size(); }

void LazyGradient::average(std::int64_t begin, std::int64_t count, void* to) const {
  std::array<const std::byte*, kernels::max_ranks> inputs;
  std::ranges::transform(inputs_, inputs.begin(), [&](const std::byte* input) {
    return input + begin * rows_.element_size();
  });
  std::byte* output = static_cast<std::byte*>(to);
  kernels::combine({.dtype = dtype_of(rows_.scalar_type()),
                    .op = Op::average,
                    .inputs = std::span(inputs.data(), inputs_.size()),
                    .outputs = std::span(&output, 1),
                    .elements = count});
}

void LazyGradient::read(std::int64_t begin, std::int64_t count, void* to) const {
  c10::ScalarType summed = rows_.scalar_type();
  if (summed == dtype_) return average(begin, count, to);
  if (inputs_.size() == 1)
    return convert(summed, inputs_[0] + begin * rows_.element_size(), dtype_, to, count);
  alignas(64) std::array<std::byte, buffer_bytes> averages;
  std::int64_t most = buffer_bytes / rows_.element_size();
  auto size = static_cast<std::int64_t>(c10::elementSize(dtype_));
  for (std::int64_t done = 0; done < count; done += most) {
    std::int64_t part = std::min(most, count - done);
    average(begin + done, part, averages.data());
    convert(summed, averages.data(), dtype_, static_cast<std::byte*>(to) + done * size, part);
  }
}

void LazyGradient::compute() {
  Lock lock(mutex_);
  if (std::exchange(computed_, true)) return;
  c10::InferenceMode off(false);
  at::Tensor memory = at::empty({range_.length()}, rows_.options().dtype(dtype_));
  auto* begin = static_cast<std::byte*>(memory.mutable_data_ptr());
  std::int64_t pieces = (range_.length() + piece_elements - 1) / piece_elements;
  optim::for_each_in_parallel(static_cast<std::size_t>(pieces), [&](std::size_t i) {
    std::int64_t first = static_cast<std::int64_t>(i) * piece_elements;
    read(first, std::min(piece_elements, range_.length() - first),
         begin + first * memory.element_size());
  });
  storage_->attach(memory);
}

void LazyGradients::add(std::shared_ptr<LazyGradient> gradient) {
  Lock lock(mutex_);
  gradients_.push_back(std::move(gradient));
  open_ = true;
}

void LazyGradients::settle() {
  Lock lock(mutex_);
  for (const auto& gradient : gradients_) gradient->settle();
  gradients_.clear();
  open_ = false;
}

bool LazyGradients::are_open() {
  Lock lock(mutex_);
  return open_;
}

class AbsentGradients::Refusal final : public dispatch::ZeroWatch {
 public:
  Refusal(std::string text, bool of_module, std::int64_t numel)
      : ZeroWatch(numel), text_(std::move(text)), of_module_(of_module) {}

  // An optimizer's own zero_grad() does not notify a slice of its gradient, and needs memory to
  // write zeros to.
  void pin(const dispatch::StorageUse& use) override {
    if (of_module_ || (use.operation != "aten::zero_" && use.operation != "aten::detach_"))
      refuse(use);
    ZeroWatch::pin(use);
    storage->attach(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device)));
  }
  // module->zero_grad() detaches a gradient before it drops it.
  void view(const dispatch::StorageUse& use) override {
    if (of_module_) refuse(use);
  }
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

// The owner of an average in a slice's .grad. While a later gradient is kept in the module, the
// average lacks it, and may only be cleared.
class AbsentGradients::Watch final : public dispatch::ZeroWatch {
 public:
  Watch(NamedParameter parameter, at::Tensor slice)
      : ZeroWatch(slice.numel()), parameter_(std::move(parameter)), slice_(std::move(slice)) {}

  void pin(const dispatch::StorageUse& use) override {
    if (use.operation != "aten::zero_" && use.operation != "aten::detach_" && lacks_gradient())
      throw InvalidArgument(formatted(
          "{}: the gradient of {} from the last backward() inside no_sync() is not averaged yet: "
          "call backward() outside no_sync() first, or zero_grad()",
          use.operation, parameter_.name));
    const std::uint64_t before = zeros();
    ZeroWatch::pin(use);
    if (zeros() != before) is_kept_ = false;
  }

  void set_kept(bool is_kept) { is_kept_ = is_kept; }

 private:
  // The program may have cleared either gradient itself.
  [[nodiscard]] bool lacks_gradient() const {
    return is_kept_ && slice_.grad().defined() && dispatch::has_gradient(parameter_.tensor);
  }

  const NamedParameter parameter_;
  const at::Tensor slice_;
  std::atomic<bool> is_kept_ = false;
};

AbsentGradients::One AbsentGradients::made(const at::Tensor& like, bool of_module,
                                           const std::string& text) const {
  auto owner = std::make_shared<Refusal>(text, of_module, like.numel());
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
    watches_.push_back(std::make_shared<Watch>(unit.parameters()[i], unit.slices()[i]));
    kept_.emplace_back();
    put_in_module(i);
    hooks_.push_back(tensor.register_hook(
        [this, i, parameter = tensor.unsafeGetTensorImpl()](const at::Tensor&) {
          drop_if_cleared(static_cast<int>(i));
          if (dispatch::is_lazy(parameter->grad())) parameter->mutable_grad().reset();
        }));
  }
}

AbsentGradients::~AbsentGradients() {
  auto clear = [](const at::Tensor& tensor) {
    if (!dispatch::has_gradient(tensor)) tensor.mutable_grad().reset();
  };
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    unit_.parameters()[i].tensor.remove_hook(hooks_[i]);
    clear(unit_.parameters()[i].tensor);
    clear(unit_.slices()[i]);
  }
}

void AbsentGradients::put_in_module(std::size_t i) {
  unit_.parameters()[i].tensor.mutable_grad() = of_module_[i].tensor;
  set_kept(i, std::nullopt);
}

void AbsentGradients::set_kept(std::size_t i, const std::optional<Kept>& kept) {
  kept_[i] = kept;
  watches_[i]->set_kept(kept.has_value());
}

void AbsentGradients::leave_in_module(int i) {
  Lock lock(mutex_);
  put_in_module(static_cast<std::size_t>(i));
}

void AbsentGradients::leave_in_slice(int i) {
  auto place = static_cast<std::size_t>(i);
  at::Tensor& gradient = unit_.slices()[place].mutable_grad();
  if (!gradient.defined()) gradient = of_slices_[place].tensor;
}

void AbsentGradients::keep(int i) {
  auto place = static_cast<std::size_t>(i);
  Lock lock(mutex_);
  leave_in_slice(i);
  watch_slice(place);
  set_kept(place, Kept{of_slices_[place].owner->zeros(), watches_[place]->zeros()});
}

void AbsentGradients::forget(int i) {
  Lock lock(mutex_);
  set_kept(static_cast<std::size_t>(i), std::nullopt);
}

// The same memory in a storage of its own, whose owner sees its uses. The owner is new, because the
// program may hold an earlier gradient, which is complete.
void AbsentGradients::watch_slice(std::size_t i) {
  const at::Tensor& slice = unit_.slices()[i];
  at::Tensor& gradient = slice.mutable_grad();
  if (gradient.layout() != at::kStrided || !dispatch::has_gradient(slice)) return;
  if (dispatch::owner_of(*gradient.unsafeGetTensorImpl()) == watches_[i]) return;
  dispatch::bring(gradient, "backward() inside no_sync()", /*writes=*/false);
  watches_[i] = std::make_shared<Watch>(unit_.parameters()[i], slice);
  gradient = dispatch::as_part(dispatch::values_of(gradient.detach()).contiguous(), unit_.parts(),
                               unit_.owned()[i].offset, unit_.settings().key, watches_[i]);
}

bool AbsentGradients::is_cleared(std::size_t i) const {
  const std::optional<Kept>& kept = kept_[i];
  return kept && (!unit_.slices()[i].grad().defined() ||
                  kept->zeros_of_placeholder != of_slices_[i].owner->zeros() ||
                  kept->zeros_of_gradient != watches_[i]->zeros());
}

void AbsentGradients::drop_if_cleared(int i) {
  auto place = static_cast<std::size_t>(i);
  Lock lock(mutex_);
  if (is_cleared(place)) put_in_module(place);
}

}  // namespace lockstep::sharded
