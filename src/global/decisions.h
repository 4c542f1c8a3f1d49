// Decisions: how operations run on global tensors, remembered by what they depend on.
#pragma once

#include "global/spec.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::global {

// How one operation runs on arguments of one kind.
struct Decision final : c10::intrusive_ptr_target {
  struct Operand {
    PlacementList placements;  // in which the operation gets it
    bool converts = false;     // it has others
    PlacementList left;        // a written one: in which the operation leaves it
    bool converts_back = false;
  };
  struct Result {
    PlacementList placements;
    Dims sizes;    // of the whole
    Dims strides;  // empty: as LibTorch says
  };
  // By tensor argument, in the order of the schema; results without those that are arguments.
  c10::SmallVector<Operand, 4> operands;
  std::vector<Result> results;
  std::vector<std::pair<int, c10::IValue>> replaced;
  std::function<void(torch::jit::Stack&)> kernel;
  bool is_plain = true;         // nothing converts and nothing is replaced
  bool is_copy = false;         // a view that had to be made of other memory
  bool may_fail_alone = false;  // ranks run it on different values
  // Of the results, once the operation has run: final before the decision is added to Decisions.
  std::vector<SpecPtr> specs;
  bool has_run = false;
  std::vector<SpecPtr> keeps;  // what the key points at
};
using DecisionPtr = c10::intrusive_ptr<Decision>;

// What a decision depends on: the operation, the specs of tensors, and other arguments.
struct Key {
  c10::SmallVector<std::uint64_t, 40> words;
  std::uint64_t hash = 0;
  bool can_be_remembered = true;

  void add(std::uint64_t word) {
    words.push_back(word);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  bool operator==(const Key& other) const { return hash == other.hash && words == other.words; }
};

class Decisions {
 public:
  Decisions();
  // Null: not remembered.
  [[nodiscard]] DecisionPtr find(const Key& key);
  void add(const Key& key, DecisionPtr decision);
  void clear();
  // Since the space was made: how many have been added.
  [[nodiscard]] std::int64_t added() const { return added_.load(std::memory_order_relaxed); }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.hash; }
  };
  std::atomic<std::int64_t> added_{0};
  std::atomic<std::uint64_t> generation_;  // another one after each clear(), and in each space
  std::mutex mutex_;
  std::unordered_map<Key, DecisionPtr, Hash> all_;
};

}  // namespace lockstep::global
