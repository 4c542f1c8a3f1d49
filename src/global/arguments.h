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

  c10::SmallVector<TensorArgument, 6> tensors;
  bool has_list = false;
  Key key;

 private:
  void add(at::Tensor tensor, int argument, int element, bool written);
  void add_value(const c10::IValue& value, int argument, bool written, bool ignored);
  [[noreturn]] void refuse_plain(const at::Tensor& tensor, int argument) const;

  const Operation& operation_;
  Space& space_;
};

// "[Shard(0)], [Replicate]": of the tensors, for messages.
[[nodiscard]] std::string describe_placements(const Arguments& arguments);

}  // namespace lockstep::global
