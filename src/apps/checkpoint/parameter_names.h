// Names of the parameters that an optimizer of PyTorch numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

using TensorSizes = std::vector<std::int64_t>;

struct NumberedParameter {
  std::string number;
  std::size_t group = 0;
  // Sizes of its state; std::nullopt if it was never updated and has no state.
  std::optional<TensorSizes> sizes;
};

struct NamedSizes {
  std::string name;
  TensorSizes sizes;
};

// Returns the name of each parameter that has a state, by its number, assuming that each group
// lists its parameters in the order of `tensors`, the model's state_dict(). Throws BadInput if the
// result is ambiguous or contradicts the sizes of the states.
//
// If there is one group with as many parameters as tensors, they match one to one. Otherwise,
// parameters are matched by sizes: for each size, there must be equally many parameters and
// tensors, and the parameters must be in one group.
[[nodiscard]] std::map<std::string, std::string> names_by_order(
    const std::vector<NumberedParameter>& parameters, const std::vector<NamedSizes>& tensors);

// Returns names where `names[i]` is the name of `parameters[i]`. Throws BadInput for a wrong number
// of names, a duplicate name, or a state whose name or sizes match no tensor.
[[nodiscard]] std::map<std::string, std::string> names_as_given(
    const std::vector<NumberedParameter>& parameters, const std::vector<std::string>& names,
    const std::vector<NamedSizes>& tensors);

}  // namespace lockstep::apps
