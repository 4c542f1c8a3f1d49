// How autograd's edges hold a node: a std::shared_ptr up to LibTorch 2.12, a c10::intrusive_ptr
// since.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::dispatch {

using NodePointer = decltype(torch::autograd::Edge::function);

template <typename Node, typename... Arguments>
[[nodiscard]] auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>)
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  else
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
}

}  // namespace lockstep::dispatch
