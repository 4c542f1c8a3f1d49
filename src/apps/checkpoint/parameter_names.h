// The names of the parameters of a Python optimizer. torch.optim numbers its parameters in the
// order of its groups, and saves their names only if it was made from named_parameters().
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
  std::optional<TensorSizes> sizes;  // of its state; nothing if it has none: it was never updated
};

struct NamedSizes {
  std::string name;
  TensorSizes sizes;
};

// The name of each parameter that has a state, by its number, if each group lists its parameters in
// the order of `tensors`, the model's state_dict(). Throws BadInput if that leaves a doubt, or if
// the sizes of the states contradict it.
//
// One group with as many parameters as there are tensors has exactly these. Otherwise sizes decide:
// the parameters of one size must be as many as the tensors of this size, and be in one group.
[[nodiscard]] std::map<std::string, std::string> names_by_order(
    const std::vector<NumberedParameter>& parameters, const std::vector<NamedSizes>& tensors);

// `names[i]` is the name of `parameters[i]`. Throws BadInput for another number of names, a name
// that comes twice, and a state whose name or sizes no tensor has.
[[nodiscard]] std::map<std::string, std::string> names_as_given(
    const std::vector<NumberedParameter>& parameters, const std::vector<std::string>& names,
    const std::vector<NamedSizes>& tensors);

}  // namespace lockstep::apps
