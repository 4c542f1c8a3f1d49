#include "parallel/bucket.h"

#include <lockstep/dispatch/part.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep::parallel {
namespace {

bool keeps_strides(const at::Tensor& like) { return like.is_non_overlapping_and_dense(); }

at::Tensor place(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                 at::IntArrayRef strides) {
  return at::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
}

}  // namespace

Bucket::Bucket(const Group& group, layout::FlatLayout layout, c10::ScalarType dtype,
               c10::Device device, std::string name)
    : layout_(std::move(layout)),
      flat_(group.empty_shared({layout_.numel()}, at::TensorOptions().dtype(dtype).device(device))),
      name_(std::move(name)) {
  flat_.zero_();
}

at::Tensor Bucket::reducible() const {
  return flat_.is_complex() ? at::view_as_real(flat_) : flat_;
}

at::Tensor Bucket::view(int i, const at::Tensor& like) const {
  if (!keeps_strides(like)) return view(i);
  const layout::FlatEntry& entry = layout_.entry(i);
  return place(flat_, entry.offset, entry.sizes, like.strides());
}

at::Tensor Bucket::view(int i) const {
  const layout::FlatEntry& entry = layout_.entry(i);
  return place(flat_, entry.offset, entry.sizes, c10::contiguous_strides(entry.sizes));
}

// A part on the bucket's memory has a storage of its own.
bool Bucket::is_at(const at::Tensor& tensor, std::int64_t offset) const {
  if (tensor.numel() > 0 && dispatch::parts_of(tensor) != nullptr)
    return tensor.const_data_ptr() == static_cast<const std::byte*>(flat_.const_data_ptr()) +
                                          offset * static_cast<std::int64_t>(flat_.element_size());
  return tensor.storage().unsafeGetStorageImpl() == flat_.storage().unsafeGetStorageImpl() &&
         tensor.storage_offset() == flat_.storage_offset() + offset;
}

bool Bucket::holds(int i, const at::Tensor& tensor, const at::Tensor& like) const {
  const layout::FlatEntry& entry = layout_.entry(i);
  if (!tensor.defined() || tensor.layout() != at::kStrided ||
      tensor.scalar_type() != flat_.scalar_type())
    return false;
  if (tensor.sizes() != entry.sizes || !is_at(tensor, entry.offset)) return false;
  return keeps_strides(like) ? tensor.strides() == like.strides() : tensor.is_contiguous();
}

}  // namespace lockstep::parallel
