// The tensors among the arguments of one call, and what of all arguments a decision depends on.
#pragma once

#include "dispatch/call.h"
#include "global/decisions.h"
#include "global/global_tensor.h"
#include "global/operation.h"

#include <c10/util/SmallVector.h>

#include <span>

namespace lockstep::global {

struct TensorArgument {
  at::Tensor tensor;
  GlobalTensor* global = nullptr;  // null: plain
  int argument = 0;
  int element = -1;
  bool written = false;
};

struct Arguments {
  // Takes the tensors that are in no list out of `values`. InvalidArgument for tensors of several
  // meshes, and for plain ones that are not allowed.
  Arguments(const Operation& operation, std::span<c10::IValue> values, Space& space);

  // Puts them back.
  void give_back(std::span<c10::IValue> values);

  c10::SmallVector<TensorArgument, 6> tensors;
  bool has_list = false;
  // One tensor at least is of another space on the same ranks: they are to be brought together, and
  // there is no key.
  bool is_mixed = false;
  Key key;

 private:
  void add(at::Tensor tensor, int argument, int element, bool written);
  void add_value(const c10::IValue& value, int argument, bool written, bool ignored);
  void take_plain() const;
  [[noreturn]] void refuse_plain(const TensorArgument& plain) const;

  const Operation& operation_;
  Space& space_;
  bool has_plain_ = false;  // of one dim or more, or written
};

// "[Shard(0)], [Replicate]": of the tensors, for messages.
[[nodiscard]] std::string describe_placements(const Arguments& arguments);

}  // namespace lockstep::global
