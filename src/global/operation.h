// Properties of an operation that do not depend on its arguments; computed once per operation.
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
    rule,           // runs by its rule
    composite,      // consists of other operations, which are intercepted one by one
    in_place_view,  // squeeze_() and the like: the tensor becomes the result of `view`
    unknown,        // has no rule
    refused,        // reads or sets sizes, strides or offset of memory
  };

  struct Return {
    bool is_tensor = false;
    bool is_list = false;  // list of tensors
    int alias = -1;        // argument that the operation has written and returns
  };

  std::string name;  // "aten::add_"
  Way way = Way::unknown;
  RuleFunction rule;
  bool for_each_element = false;  // the rule applies to each list element separately
  std::vector<bool> written;      // per argument
  // Arguments of running statistics, which batch normalisation writes if `training` is set although
  // its schema does not say so.
  struct Statistics {
    std::size_t first, last, training;
  };
  std::optional<Statistics> statistics;
  std::vector<bool> ignored;  // per argument: numbers on which no placement depends
  std::vector<Return> returns;
  std::size_t tensor_results = 0;  // returns that are tensors
  bool is_view = false;
  std::optional<c10::OperatorHandle> view;  // for Way::in_place_view
  std::string gradient;  // the operation of its gradient if that has no rule; otherwise empty
  c10::DispatchKey composite = c10::DispatchKey::Undefined;
};

// Returns the properties of an operation. Thread-safe. The reference stays valid until the process
// ends.
[[nodiscard]] const Operation& operation_of(const c10::OperatorHandle& handle);

// Returns a hint for messages: how to register a rule for the operation, or "".
[[nodiscard]] std::string how_to_register(std::string_view name);

}  // namespace lockstep::global
