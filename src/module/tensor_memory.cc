#include "module/tensor_memory.h"

#include "dispatch/lazy_storage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

namespace lockstep::modules {
namespace {

bool has_dense_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_meta() &&
         tensor.numel() > 0;
}

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// Elements from the first to behind the last.
std::int64_t extent_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return last + 1;
}

// Bytes in an address space: the process's, or that of a storage without memory.
struct Span {
  const void* space = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t number = 0;
};

Span span_of(const at::Tensor& tensor, std::size_t number) {
  bool is_released = dispatch::is_lazy(tensor) && !dispatch::has_memory(tensor);
  auto base = is_released ? 0 : reinterpret_cast<std::int64_t>(tensor.storage().data());
  auto size = static_cast<std::int64_t>(tensor.element_size());
  std::int64_t begin = base + tensor.storage_offset() * size;
  return {is_released ? storage_of(tensor) : nullptr, begin, begin + extent_of(tensor) * size,
          number};
}

// Flags of `count` elements, those of `tensor` set; its first one is number `begin`.
at::Tensor marked(const at::Tensor& tensor, std::int64_t begin, std::int64_t count) {
  at::Tensor flags = at::zeros({count}, at::kBool);
  without_repetitions(flags.as_strided(tensor.sizes(), tensor.strides(), begin)).fill_(true);
  return flags;
}

// Of spans that overlap: they may lie in each other's gaps.
bool have_common_elements(const at::Tensor& a, const Span& of_a, const at::Tensor& b,
                          const Span& of_b) {
  auto size = static_cast<std::int64_t>(a.element_size());
  std::int64_t begin = std::min(of_a.begin, of_b.begin);
  std::int64_t bytes = std::max(of_a.end, of_b.end) - begin;
  bool comparable = a.element_size() == b.element_size() && (of_a.begin - of_b.begin) % size == 0;
  if (!comparable || (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()))
    return true;
  at::Tensor both = marked(a, (of_a.begin - begin) / size, bytes / size)
                        .logical_and_(marked(b, (of_b.begin - begin) / size, bytes / size));
  return both.any().item<bool>();
}

}  // namespace

at::Tensor without_repetitions(const at::Tensor& tensor) {
  at::Tensor once = tensor;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) once = once.narrow(dim, 0, 1);
  return once;
}

bool repeats_elements(const at::Tensor& tensor) {
  if (!has_dense_memory(tensor) || tensor.is_non_overlapping_and_dense()) return false;
  at::NoGradGuard no_grad;
  return marked(tensor, 0, extent_of(tensor)).sum().item<std::int64_t>() < tensor.numel();
}

std::vector<std::optional<std::size_t>> first_sharing(std::span<const at::Tensor> tensors) {
  at::NoGradGuard no_grad;
  std::vector<Span> spans;
  std::set<const void*> seen;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (has_dense_memory(tensors[i]) && seen.insert(tensors[i].unsafeGetTensorImpl()).second)
      spans.push_back(span_of(tensors[i], i));
  std::ranges::sort(spans, {}, [](const Span& one) { return std::tuple(one.space, one.begin); });
  std::vector<std::optional<std::size_t>> sharing(tensors.size());
  for (std::size_t i = 0; i < spans.size(); ++i)
    for (std::size_t j = i + 1;
         j < spans.size() && spans[j].space == spans[i].space && spans[j].begin < spans[i].end;
         ++j) {
      auto [first, second] = std::minmax(spans[i].number, spans[j].number);
      if (sharing[second] && *sharing[second] <= first) continue;
      if (have_common_elements(tensors[spans[i].number], spans[i], tensors[spans[j].number],
                               spans[j]))
        sharing[second] = first;
    }
  return sharing;
}

bool is_held_elsewhere(const at::Tensor& tensor, std::span<const at::Tensor> tensors) {
  if (!has_dense_memory(tensor) || dispatch::is_lazy(tensor)) return false;
  std::set<const void*> holders;
  std::map<const at::TensorImpl*, std::size_t> views;  // of each base
  for (const at::Tensor& one : tensors) {
    if (!one.has_storage() || storage_of(one) != storage_of(tensor)) continue;
    bool is_new = holders.insert(one.unsafeGetTensorImpl()).second;
    if (is_new && one.is_view()) ++views[one._base().unsafeGetTensorImpl()];
  }
  // What a tensor is a view of it holds itself: the result of randn(12), where view() follows.
  for (const auto& [base, count] : views)
    if (c10::raw::intrusive_ptr::use_count(const_cast<at::TensorImpl*>(base)) == count)
      holders.insert(base);
  return tensor.storage().use_count() > holders.size();
}

}  // namespace lockstep::modules
