#include "comm/engines/shm/allocator.h"

#include <algorithm>
#include <iterator>

namespace lockstep::shm {
namespace {

std::size_t round_up_to(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

Allocator::Allocator(std::size_t begin, std::size_t end) {
  if (end > begin) insert(begin, {end - begin, 0});
}

std::optional<std::size_t> Allocator::allocate(std::size_t bytes) {
  bool is_large = bytes >= large;
  bytes = round_up_to(std::max<std::size_t>(bytes, 1), is_large ? page : grain);
  auto offset = place(bytes, is_large ? page : grain);
  if (offset) {
    used_ranges_.emplace(*offset, bytes);
    used_ += bytes;
  }
  return offset;
}

std::optional<std::size_t> Allocator::place(std::size_t bytes, std::size_t alignment) {
  for (auto fit = by_size_.lower_bound({bytes, 0}); fit != by_size_.end(); ++fit) {
    auto [extent_bytes, begin] = *fit;
    std::size_t offset = round_up_to(begin, alignment);
    std::size_t end = begin + extent_bytes;
    if (offset + bytes > end) continue;
    auto extent = free_.find(begin);
    std::size_t touched = extent->second.touched;
    erase(extent);
    // Written pages are used up first: the rest is untouched if any part is.
    std::size_t before = offset - begin;
    std::size_t after = end - offset - bytes;
    std::size_t left = touched > bytes ? touched - bytes : 0;
    if (before > 0) insert(begin, {before, std::min(before, touched)});
    if (after > 0) insert(offset + bytes, {after, std::min(after, left)});
    return offset;
  }
  return std::nullopt;
}

void Allocator::free(std::size_t offset) {
  auto range = used_ranges_.find(offset);
  Free extent{range->second, range->second};
  used_ -= range->second;
  used_ranges_.erase(range);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + extent.bytes) {
    extent.bytes += next->second.bytes;
    extent.touched += next->second.touched;
    next = erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second.bytes == offset) {
      offset = previous->first;
      extent.bytes += previous->second.bytes;
      extent.touched += previous->second.touched;
      erase(previous);
    }
  }
  insert(offset, extent);
}

std::size_t Allocator::largest_free() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

std::optional<Allocator::Extent> Allocator::take_touched() {
  auto most = std::max_element(free_.begin(), free_.end(), [](const auto& a, const auto& b) {
    return a.second.touched < b.second.touched;
  });
  if (most == free_.end() || most->second.touched == 0) return std::nullopt;
  touched_ -= most->second.touched;
  most->second.touched = 0;
  return Extent{most->first, most->second.bytes};
}

void Allocator::insert(std::size_t offset, Free extent) {
  touched_ += extent.touched;
  by_size_.emplace(extent.bytes, offset);
  free_.emplace(offset, extent);
}

Allocator::FreeMap::iterator Allocator::erase(FreeMap::iterator extent) {
  touched_ -= extent->second.touched;
  by_size_.erase({extent->second.bytes, extent->first});
  return free_.erase(extent);
}

void Reuse::allocated(std::size_t bytes) {
  used_ += bytes;
  free_ -= std::min(free_, bytes);
  handed_out_ += bytes;
  most_used_ = std::max(most_used_, used_);
  reused_ = std::max(reused_, most_free_ - free_);
  if (handed_out_ < std::max(least_window, turnovers * most_used_)) return;
  reused_before_ = reused_;
  handed_out_ = reused_ = 0;
  most_used_ = used_;
  most_free_ = free_;
}

void Reuse::freed(std::size_t bytes) {
  used_ -= std::min(used_, bytes);
  free_ += bytes;
  most_free_ = std::max(most_free_, free_);
}

std::size_t Reuse::bytes() const { return 2 * std::max(reused_before_, reused_); }

}  // namespace lockstep::shm
