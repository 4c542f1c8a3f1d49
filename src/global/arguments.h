// The tensor arguments of one call, and the key under which its decision is cached.
#pragma once

#include "dispatch/call.h"
#include "global/global_tensor.h"
#include "global/operation.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::global {

// Everything that a decision depends on: the operation, the specs of tensors, and other arguments.
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

struct TensorArgument {
  at::Tensor tensor;
  GlobalTensor* global = nullptr;  // null: plain
  int argument = 0;
  int element = -1;
  bool written = false;
};

struct Arguments {
  // Moves tensors that are not in a list out of `values`. Throws InvalidArgument for tensors of
  // several meshes, and for plain tensors that are not allowed.
  Arguments(const Operation& operation, std::span<c10::IValue> values, MeshContext& context);

  // Moves the tensors back into `values`.
  void give_back(std::span<c10::IValue> values);

  c10::SmallVector<TensorArgument, 6> tensors;
  bool has_list = false;
  // If true, at least one tensor belongs to another context on the same ranks, and the key is not
  // set: the caller must first bring the tensors into one context.
  bool is_mixed = false;
  Key key;

 private:
  void add(at::Tensor tensor, int argument, int element, bool written);
  void add_value(const c10::IValue& value, int argument, bool written, bool ignored);
  void take_plain() const;
  [[noreturn]] void refuse_plain(const TensorArgument& plain) const;

  const Operation& operation_;
  MeshContext& context_;
  bool has_plain_ = false;  // plain, with at least one dim or written
};

// Describes placements for messages: "[Shard(0)], [Replicate]".
[[nodiscard]] std::string describe_placements(const Arguments& arguments);

// Replaces arguments.tensors[i] by tensors[i]. `values` are all arguments of the call.
void put_tensors(const Arguments& arguments, std::span<const at::Tensor> tensors,
                 std::span<c10::IValue> values);

// Returns all tensors in `values` in order, including those in lists.
[[nodiscard]] std::vector<at::Tensor> tensors_in(std::span<const c10::IValue> values);

}  // namespace lockstep::global
