#include "comm/backends/shm/arena.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/heap.h"
#include "sys/signals.h"
#include "sys/topology.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <new>
#include <string>

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
    // Assume that the block takes the written pages first.
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

void RetentionEstimate::allocated(std::size_t bytes) {
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

void RetentionEstimate::freed(std::size_t bytes) {
  used_ -= std::min(used_, bytes);
  free_ += bytes;
  most_free_ = std::max(most_free_, free_);
}

std::size_t RetentionEstimate::bytes() const { return 2 * std::max(reused_before_, reused_); }

namespace {

// Freed memory is kept for later buffers, which then need no page faults: as many bytes as are in
// use or as Reuse advises, and at least this many. MALLOC_TRIM_THRESHOLD_, with which users limit
// the memory that malloc keeps, limits this memory too.
constexpr std::size_t kept_at_least = 256 << 20;

// The header of a held block, in memory that all holders share.
struct HeldBlock {
  std::atomic<std::uint32_t> to_come{0};  // processes that have not taken the block yet
  std::atomic<std::uint32_t> holders{0};

  static HeldBlock& of(std::byte* held) {
    return *reinterpret_cast<HeldBlock*>(held - Allocator::grain);
  }
};
static_assert(sizeof(HeldBlock) <= Allocator::grain);

std::string bytes_text(std::size_t bytes) { return format_bytes(static_cast<std::int64_t>(bytes)); }

}  // namespace

Arena::Arena(std::size_t bytes, int rank)
    : users_limit_(sys::users_limit_of_freed_memory()),
      memory_(sys::SharedMemory::create("lockstep-arena", bytes / Allocator::page * Allocator::page,
                                        rank)),
      allocator_(reserved_bytes, memory_.bytes()) {}

std::byte* Arena::allocate(std::size_t bytes, std::string_view advice) {
  check(!process_.is_copy_of_parent(),
        "shared memory: made in process {}, not usable in its child {}", process_.number(),
        sys::own_process());
  if (auto block = try_allocate(bytes); !block.empty()) return block.data();
  constexpr std::size_t gibibyte = 1 << 30;
  std::lock_guard lock(mutex_);
  throw BadInput(
      formatted("shared memory: a buffer of {} does not fit: {} of the arena's {} are in use and "
                "the largest free range "
                "is {}; a larger LOCKSTEP_ARENA (such as {}) helps{}",
                bytes_text(bytes), bytes_text(allocator_.used()), bytes_text(memory_.bytes()),
                bytes_text(allocator_.largest_free()),
                bytes_text(((memory_.bytes() + bytes) / gibibyte + 1) * gibibyte), advice));
}

std::span<std::byte> Arena::try_allocate(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  free_released();
  auto offset = allocator_.allocate(bytes);
  if (!offset) return {};
  const std::size_t length = allocator_.bytes_at(*offset);
  reuse_.allocated(length);
  return {memory_.data() + *offset, length};
}

std::byte* Arena::allocate_zeroed(std::size_t bytes) {
  bytes =
      (std::max(bytes, Allocator::large) + Allocator::page - 1) / Allocator::page * Allocator::page;
  auto* block = allocate(bytes);
  if (!memory_.punch(static_cast<std::size_t>(block - memory_.data()), bytes))
    std::memset(block, 0, bytes);
  return block;
}

std::size_t Arena::free(std::byte* block) {
  if (process_.is_copy_of_parent()) return 0;
  std::lock_guard lock(mutex_);
  auto offset = static_cast<std::size_t>(block - memory_.data());
  auto bytes = allocator_.bytes_at(offset);
  free_at(offset);
  give_back_pages_beyond(
      users_limit_.value_or(std::max({kept_at_least, allocator_.used(), reuse_.bytes()})));
  return bytes;
}

void Arena::free_at(std::size_t offset) {
  reuse_.freed(allocator_.bytes_at(offset));
  allocator_.free(offset);
}

std::byte* Arena::allocate_held(std::size_t bytes, int holders, int takers) {
  auto* block = allocate(Allocator::grain + bytes);
  auto* head = new (block) HeldBlock();
  head->to_come = static_cast<std::uint32_t>(takers);
  head->holders = static_cast<std::uint32_t>(holders);
  std::lock_guard lock(mutex_);
  held_.push_back(block);
  return block + Allocator::grain;
}

void Arena::take(std::byte* held) {
  auto& block = HeldBlock::of(held);
  block.holders.fetch_add(1, std::memory_order_acq_rel);
  block.to_come.fetch_sub(1, std::memory_order_acq_rel);
}

void Arena::release_hold(std::byte* held) {
  HeldBlock::of(held).holders.fetch_sub(1, std::memory_order_release);
}

void Arena::expect_nobody(std::byte* held) {
  HeldBlock::of(held).to_come.store(0, std::memory_order_release);
}

bool Arena::is_held(const std::byte* data) {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(held_, [&](std::byte* block) {
    auto offset = static_cast<std::size_t>(block - memory_.data());
    return data >= block && data < block + allocator_.bytes_at(offset);
  });
}

void Arena::free_released() {
  std::erase_if(held_, [this](std::byte* block) {
    auto& held = HeldBlock::of(block + Allocator::grain);
    if (held.to_come.load(std::memory_order_acquire) != 0) return false;
    if (held.holders.load(std::memory_order_acquire) != 0) return false;
    free_at(static_cast<std::size_t>(block - memory_.data()));
    return true;
  });
}

std::size_t Arena::used() {
  std::lock_guard lock(mutex_);
  free_released();
  return allocator_.used();
}

bool Arena::reserve(std::span<const std::byte> block) const {
  const sys::ScopedSignalBlock quiet(SIGXFSZ);
  return memory_.reserve(static_cast<std::size_t>(block.data() - memory_.data()), block.size());
}

void Arena::give_back_pages() {
  if (process_.is_copy_of_parent()) return;
  std::lock_guard lock(mutex_);
  free_released();
  give_back_pages_beyond(0);
}

void Arena::give_back_pages_beyond(std::size_t kept) {
  while (allocator_.touched_free() > kept) {
    auto extent = allocator_.take_touched();
    if (!extent) return;
    std::size_t begin = (extent->offset + Allocator::page - 1) / Allocator::page * Allocator::page;
    std::size_t end = (extent->offset + extent->bytes) / Allocator::page * Allocator::page;
    if (end > begin && !memory_.punch(begin, end - begin)) return;
  }
}

std::size_t arena_bytes(std::optional<std::int64_t> asked, std::string_view name, int ranks) {
  constexpr std::size_t least = 64 << 20;
  auto memory = sys::memory_size();
  auto check_limit = [](std::size_t bytes) {
    auto most = sys::SharedMemory::most_bytes();
    check_input(bytes <= most,
                "shared memory: an arena of {} is larger than a file of this process may be, {} "
                "(ulimit -f); raise that limit, or set LOCKSTEP_ARENA to less",
                bytes_text(bytes), bytes_text(most));
    return bytes;
  };
  if (!asked)
    return check_limit(std::max(least, static_cast<std::size_t>(memory.total) / 4 * 3 / ranks));
  check_input(*asked >= static_cast<std::int64_t>(1 << 20),
              "{}: expected an arena of at least 1 MiB, found {}", name, format_bytes(*asked));
  check_input(*asked <= memory.available,
              "{}: expected an arena of at most the {} that are free now, found {}", name,
              format_bytes(memory.available), format_bytes(*asked));
  return check_limit(static_cast<std::size_t>(*asked));
}

std::size_t bytes_for_tensors(std::size_t arena_bytes, int ranks) {
  auto memory = static_cast<std::size_t>(sys::memory_size().total);
  auto address_space =
      sys::SharedMemory::address_space(2 * ranks * (arena_bytes + memory)) / 2 / ranks;
  auto most = std::min(address_space, sys::SharedMemory::most_bytes());
  auto left = most - std::min(most, arena_bytes);
  return std::min(memory, left) / Allocator::page * Allocator::page;
}

}  // namespace lockstep::shm
