#include "global/decisions.h"

namespace lockstep::global {
namespace {

// A training step has some hundreds; where shapes vary without end, all are forgotten.
constexpr std::size_t most = 16384;

std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// What this thread has found lately, by a part of the hash: without a lock.
struct Found {
  std::uint64_t generation = 0;
  Key key;
  DecisionPtr decision;
};
constexpr std::size_t found_bits = 8;

}  // namespace

Decisions::Decisions() : generation_(next_generation()) {}

DecisionPtr Decisions::find(const Key& key) {
  thread_local std::vector<Found> lately(std::size_t{1} << found_bits);
  Found& entry = lately[key.hash >> (64 - found_bits)];
  std::uint64_t generation = generation_.load(std::memory_order_acquire);
  if (entry.generation == generation && entry.key == key) return entry.decision;
  std::lock_guard lock(mutex_);
  auto found = all_.find(key);
  if (found == all_.end()) return {};
  entry = {generation, key, found->second};
  return found->second;
}

void Decisions::add(const Key& key, DecisionPtr decision) {
  added_.fetch_add(1, std::memory_order_relaxed);
  if (!key.can_be_remembered) return;
  std::lock_guard lock(mutex_);
  if (all_.size() >= most) all_.clear();
  all_.insert_or_assign(key, std::move(decision));
}

void Decisions::clear() {
  std::lock_guard lock(mutex_);
  all_.clear();
  generation_.store(next_generation(), std::memory_order_release);
}

}  // namespace lockstep::global
