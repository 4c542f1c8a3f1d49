#include "layout/flat_layout.h"

#include "base/check.h"

#include <lockstep/layout/box.h>

#include <algorithm>

namespace lockstep::layout {
namespace {

std::int64_t count_elements(const TensorSpec& tensor) {
  for (std::int64_t size : tensor.sizes)
    check(size >= 0, "flat layout: {} has a negative size, {}", tensor.name, size);
  return numel_of(tensor.sizes);
}

}  // namespace

FlatLayout::FlatLayout(std::span<const TensorSpec> tensors, FlatOptions options) {
  if (!tensors.empty()) dtype_ = tensors.front().dtype;
  std::int64_t element = dtype_.bytes;
  check(options.alignment >= 1 &&
            (options.alignment % element == 0 || element % options.alignment == 0),
        "flat layout: alignment must be a multiple of an element's {} bytes, found {}", element,
        options.alignment);
  for (const TensorSpec& tensor : tensors)
    place(tensor, std::max<std::int64_t>(1, options.alignment / element));
  numel_ = round_up(numel_, options.multiple);
}

void FlatLayout::place(const TensorSpec& tensor, std::int64_t alignment) {
  check(tensor.dtype == dtype_, "flat layout: {} is {}, but {} is {}", tensor.name,
        tensor.dtype.name, entries_.empty() ? "" : entries_.front().name, dtype_.name);
  FlatEntry entry{tensor.name, tensor.sizes, count_elements(tensor), 0, false};
  auto same = std::find(identities_.begin(), identities_.end(), tensor.identity);
  if (tensor.identity != nullptr && same != identities_.end()) {
    const FlatEntry& first = entries_[static_cast<std::size_t>(same - identities_.begin())];
    check(first.sizes == tensor.sizes, "flat layout: {} is tied to {} but has other sizes",
          tensor.name, first.name);
    entry.offset = first.offset;
    entry.tied = true;
  } else {
    entry.offset = tensor.follows ? numel_ : round_up(numel_, alignment);
    numel_ = entry.offset + entry.numel;
    used_ += entry.numel;
  }
  identities_.push_back(tensor.identity);
  entries_.push_back(std::move(entry));
}

std::int64_t FlatLayout::bytes() const { return numel_ * dtype_.bytes; }

std::vector<FlatSlice> FlatLayout::slices_in(Range range) const {
  std::vector<FlatSlice> slices;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const FlatEntry& entry = entries_[i];
    Range part = intersect({entry.offset, entry.offset + entry.numel}, range);
    if (entry.tied || part.empty()) continue;
    slices.push_back({static_cast<int>(i),
                      {part.begin - entry.offset, part.end - entry.offset},
                      part.begin - range.begin});
  }
  return slices;
}

}  // namespace lockstep::layout
