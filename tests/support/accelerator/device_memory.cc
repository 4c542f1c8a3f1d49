#include "support/accelerator/device_memory.h"

#include "support/accelerator/machine.h"
#include "support/accelerator/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::test::accelerator {
namespace {

using at::Tensor;

c10::DispatchKeySet key_set() { return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1); }

Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout>, std::optional<at::Device> device,
                           std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, &device_allocator(), key_set(),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), key_set(),
                                           c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                  std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

Tensor reshape_alias(const Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

Tensor view(const Tensor& self, at::IntArrayRef sizes) { return at::native::view(self, sizes); }

Tensor& set_to_storage(Tensor& self, at::Storage storage, std::int64_t offset,
                       at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.data() != nullptr)
    impl->set_sizes_and_strides(sizes, strides);
  else
    impl->set_sizes_contiguous(sizes);
  TORCH_CHECK(at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                               offset) <= self.storage().nbytes(),
              "set_: the storage is too small");
  return self;
}

Tensor& set_to_whole_storage(Tensor& self, at::Storage storage) {
  const auto elements = static_cast<std::int64_t>(storage.nbytes() / self.itemsize());
  return set_to_storage(self, std::move(storage), 0, {elements}, {});
}

Tensor& set_to_tensor(Tensor& self, const Tensor& source) {
  return set_to_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                        source.strides());
}

const Tensor& resize(const Tensor& self, at::IntArrayRef sizes,
                     std::optional<at::MemoryFormat> format) {
  if (self.sizes() == sizes && !format) return self;
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const auto bytes = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                                      self.storage_offset());
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

void record_stream(Tensor& self, at::Stream stream) {
  Machine::get().record_stream(self.storage().mutable_data(), actor_of(stream));
}

// Copies between devices as CUDA does: on the current stream of the source, after earlier work and
// before later work of the target's current stream.
void copy_on_devices(const Tensor& source, const Tensor& target, std::vector<Access> accesses) {
  auto& machine = Machine::get();
  const int from = source.device().index(), to = target.device().index();
  const Actor stream = current_actor(from), other = current_actor(to);
  Aliases aliases;
  if (from != to) machine.wait(machine.record(other), stream);
  launch_kernel({.stream = stream,
                 .name = from == to ? "copy_" : "copy_ (peer)",
                 .accesses = std::move(accesses),
                 .run = [source = aliases.of(source), target = aliases.of(target)] {
                   target.copy_(source);
                 }});
  if (from != to) machine.wait(machine.record(stream), other);
}

// Copies from or to pinned host memory, which the kernel accesses through its own mapping;
// asynchronous if non_blocking is set.
void copy_pinned(const Tensor& source, const Tensor& target, std::vector<Access> accesses,
                 bool non_blocking) {
  const bool to_host = is_on_accelerator(source);
  const Tensor& host = to_host ? target : source;
  const Actor stream = current_actor((to_host ? source : target).device().index());
  const Tensor there =
      at::from_blob(Machine::get().memory().kernel_address(host.data_ptr()), host.sizes(),
                    host.strides(), host.options().requires_grad(false));
  Aliases aliases;
  const Tensor from = to_host ? aliases.of(source) : there;
  const Tensor to = to_host ? there : aliases.of(target);
  const std::string name = to_host ? "copy_ (to host)" : "copy_ (to device)";
  add_pinned_accesses(accesses, host, to_host ? AccessKind::write : AccessKind::copy);
  launch_kernel({.stream = stream,
                 .name = name,
                 .accesses = std::move(accesses),
                 .run = [from, to, kept = host] { to.copy_(from); },
                 .pinned = {host.data_ptr(), to_host}});
  auto& machine = Machine::get();
  if (!non_blocking) machine.synchronize(machine.record(stream), name);
}

// Copies from or to pageable memory: like CUDA, waits for the stream even if non_blocking is set.
void copy_pageable(const Tensor& source, const Tensor& target, std::vector<Access> accesses) {
  const bool to_host = is_on_accelerator(source);
  const Actor stream = current_actor((to_host ? source : target).device().index());
  Aliases aliases;
  const Tensor from = to_host ? aliases.of(source) : source.detach();
  const Tensor to = to_host ? target.detach() : aliases.of(target);
  const std::string name = to_host ? "copy_ (to host)" : "copy_ (to device)";
  launch_kernel(
      {.stream = stream, .name = name, .accesses = std::move(accesses), .run = [from, to] {
         to.copy_(from);
       }});
  auto& machine = Machine::get();
  machine.synchronize(machine.record(stream), name);
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  std::vector<Access> accesses;
  add_accesses(accesses, self, AccessKind::copy);
  add_accesses(accesses, target, AccessKind::write);
  if (is_on_accelerator(self) && is_on_accelerator(target))
    copy_on_devices(self, target, std::move(accesses));
  else if (Machine::get().memory().is_pinned((is_on_accelerator(self) ? target : self).data_ptr()))
    copy_pinned(self, target, std::move(accesses), non_blocking);
  else
    copy_pageable(self, target, std::move(accesses));
  return target;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  std::vector<Access> accesses;
  add_accesses(accesses, self, AccessKind::read);
  const auto value = std::make_shared<at::Scalar>();
  const Actor stream = current_actor(self.device().index());
  launch_kernel({.stream = stream,
                 .name = "item",
                 .accesses = std::move(accesses),
                 .run = [value, alias = Aliases().of(self)] { *value = alias.item(); }});
  auto& machine = Machine::get();
  machine.synchronize(machine.record(stream), "item");
  return *value;
}

// LibTorch calls this for dropout, as on CUDA. The CPU's kernel would take the host's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double probability,
                                          std::optional<bool> train) {
  Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {input.clone(), mask.fill_(true)};
  mask.bernoulli_(1 - probability);
  return {input * mask * (probability == 1 ? 0. : 1 / (1 - probability)), mask};
}

// Module::to() calls set_data(), which calls this function. By default, CPU and PrivateUse1 are
// incompatible.
bool has_compatible_type(const Tensor& self, const Tensor& other) {
  return self.layout() == at::kStrided && other.layout() == at::kStrided;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty_memory_format);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("view", &view);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_to_storage);
  library.impl("set_.source_Storage", &set_to_whole_storage);
  library.impl("set_.source_Tensor", &set_to_tensor);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("native_dropout", &native_dropout);
  library.impl("record_stream", &record_stream);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_type);
}

// The default fallbacks of these keys would recurse without end, because they clone tensors and a
// clone is a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// Without this fallback, every operation would fail under autocast.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FULL_PRECISION)
}
#undef LOWER_PRECISION
#undef FULL_PRECISION

}  // namespace

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr fresh = device_allocator().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0 && storage.data() != nullptr) {
    const Memory& memory = Machine::get().memory();
    const std::size_t from = memory.offset_of(storage.data()), to = memory.offset_of(fresh.get());
    launch_kernel(
        {.stream = current_actor(storage.device().index()),
         .name = "resize_",
         .accesses = {{from, from + kept, AccessKind::copy}, {to, to + kept, AccessKind::write}},
         .run = [source = memory.kernel_address(storage.data()),
                 target = memory.kernel_address(fresh.get()),
                 kept] { std::memcpy(target, source, kept); }});
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

}  // namespace lockstep::test::accelerator
