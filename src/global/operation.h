// What is known of an operation apart from its arguments, found once.
#pragma once

#include <lockstep/global/rule.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::global {

struct Operation {
  enum class Way {
    rule,           // by its rule
    composite,      // it is made of operations, which come one by one
    in_place_view,  // squeeze_() and the like: the tensor becomes the view that `view` gives of it
    unknown,        // there is no rule
    refused,        // it reads or sets sizes, strides or offset of memory
  };

  struct Return {
    bool is_tensor = false;
    bool is_list = false;  // of tensors
    int alias = -1;        // the argument that it is, which the operation has written
  };

  std::string name;  // "aten::add_"
  Way way = Way::unknown;
  RuleFunction rule;
  bool for_each_element = false;  // the rule is for each element of its lists apart
  std::vector<bool> written;      // by argument
  // Running statistics, which batch normalisation writes without saying so, when `training` is set.
  struct Statistics {
    std::size_t first, last, training;
  };
  std::optional<Statistics> statistics;
  std::vector<bool> ignored;  // numbers on which no placement depends, by argument
  std::vector<Return> returns;
  std::size_t tensor_results = 0;  // returns that are tensors
  bool is_view = false;
  std::optional<c10::OperatorHandle> view;  // of Way::in_place_view
  std::string gradient;  // the operation of its gradient, if that one has no rule; or empty
  c10::DispatchKey composite = c10::DispatchKey::Undefined;
};

// Any thread. Stays valid for ever.
[[nodiscard]] const Operation& operation_of(const c10::OperatorHandle& handle);

// "", or how a rule for it would be registered.
[[nodiscard]] std::string how_to_register(std::string_view name);

}  // namespace lockstep::global
