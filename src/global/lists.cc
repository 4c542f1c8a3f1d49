#include "global/lists.h"

#include <ATen/core/List.h>

#include <optional>

namespace lockstep::global {
namespace {

// A list as `old`, with tensors[0], tensors[1], ... in the places `elements`.
c10::IValue with_tensors(const c10::IValue& old, std::span<const at::Tensor> tensors,
                         const Arguments& arguments, std::size_t first) {
  auto is_of_this_list = [&](std::size_t i, std::size_t element) {
    return i < arguments.tensors.size() &&
           arguments.tensors[i].argument == arguments.tensors[first].argument &&
           arguments.tensors[i].element == static_cast<int>(element);
  };
  auto elements = old.toListRef();
  std::size_t next = first;
  if (old.isTensorList()) {
    c10::List<at::Tensor> list;
    list.reserve(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i)
      list.push_back(is_of_this_list(next, i) ? tensors[next++] : elements[i].toTensor());
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (is_of_this_list(next, i)) {
      list.push_back(tensors[next++]);
    } else {
      list.push_back(elements[i].toOptional<at::Tensor>());
    }
  }
  return list;
}

}  // namespace

void put_tensors(const Arguments& arguments, std::span<const at::Tensor> tensors,
                 std::span<c10::IValue> values) {
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    const TensorArgument& one = arguments.tensors[i];
    auto& value = values[static_cast<std::size_t>(one.argument)];
    if (one.element < 0) {
      value = tensors[i];
    } else if (i == 0 || arguments.tensors[i - 1].argument != one.argument) {
      value = with_tensors(value, tensors, arguments, i);
    }
  }
}

std::vector<at::Tensor> tensors_in(std::span<const c10::IValue> values) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      all.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) all.push_back(element.toTensor());
    }
  }
  return all;
}

}  // namespace lockstep::global
