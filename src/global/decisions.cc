#include "global/decisions.h"

namespace lockstep::global {
namespace {

// A training step has some hundreds; where shapes vary without end, all are forgotten.
constexpr std::size_t most = 16384;

}  // namespace

DecisionPtr Decisions::find(const Key& key) {
  std::lock_guard lock(mutex_);
  auto found = all_.find(key);
  return found == all_.end() ? DecisionPtr() : found->second;
}

void Decisions::add(const Key& key, DecisionPtr decision) {
  if (!key.can_be_remembered) return;
  std::lock_guard lock(mutex_);
  if (all_.size() >= most) all_.clear();
  all_.insert_or_assign(key, std::move(decision));
}

void Decisions::clear() {
  std::lock_guard lock(mutex_);
  all_.clear();
}

}  // namespace lockstep::global
