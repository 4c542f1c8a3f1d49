#include "apps/checkpoint/parameter_names.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"

#include <set>
#include <string_view>

namespace lockstep::apps {
namespace {

constexpr std::string_view remedy =
    "give their names with --parameters FILE (an optimizer built from named_parameters() saves the "
    "names)";

std::string sizes_of(const TensorSizes& sizes) { return formatted("[{}]", listed(sizes, ", ")); }

// Parameters and tensors of equal sizes, by their indices in the lists.
struct SameSizes {
  std::vector<std::size_t> parameters, tensors;
};

void check_alone(const TensorSizes& sizes, const SameSizes& same,
                 const std::vector<NumberedParameter>& parameters) {
  check_input(same.parameters.size() == same.tensors.size(),
              "the optimizer's parameters have numbers, not names, and for sizes {} the counts of "
              "its states and of the model's tensors differ, {} and {}: {}",
              sizes_of(sizes), same.parameters.size(), same.tensors.size(), remedy);
  for (const std::size_t parameter : same.parameters)
    check_input(parameters[parameter].group == parameters[same.parameters.front()].group,
                "the optimizer's parameters have numbers, not names, and several groups have "
                "parameters of sizes {}: {}",
                sizes_of(sizes), remedy);
}

void check_fits(const NumberedParameter& of, const std::string& name,
                const std::map<std::string, TensorSizes>& tensors) {
  const auto tensor = tensors.find(name);
  check_input(tensor != tensors.end(),
              "the optimizer's parameter {} has the name '{}', but the model has no such tensor",
              escaped(of.number), escaped(name));
  check_input(tensor->second == *of.sizes,
              "the optimizer's parameter {} has the name '{}' of a tensor with sizes {}, but a "
              "state with sizes {}",
              escaped(of.number), escaped(name), sizes_of(tensor->second), sizes_of(*of.sizes));
}

std::map<std::string, std::string> names_by_sizes(const std::vector<NumberedParameter>& parameters,
                                                  const std::vector<NamedSizes>& tensors) {
  std::map<TensorSizes, SameSizes> by_sizes;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].sizes) by_sizes[*parameters[i].sizes].parameters.push_back(i);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const auto same = by_sizes.find(tensors[i].sizes); same != by_sizes.end())
      same->second.tensors.push_back(i);
  std::map<std::size_t, std::size_t> tensor_of;  // by index of the parameter
  for (const auto& [sizes, same] : by_sizes) {
    check_alone(sizes, same, parameters);
    for (std::size_t i = 0; i < same.parameters.size(); ++i)
      tensor_of[same.parameters[i]] = same.tensors[i];
  }
  std::map<std::string, std::string> names;
  std::map<std::size_t, std::size_t> last;  // per group: tensor of the last parameter
  for (const auto& [parameter, tensor] : tensor_of) {
    const NumberedParameter& of = parameters[parameter];
    const auto [before, is_first] = last.try_emplace(of.group, tensor);
    check_input(is_first || before->second < tensor,
                "the optimizer's parameters have numbers, not names, and the sizes of their states "
                "are not in the model's order, from number {} on: {}",
                escaped(of.number), remedy);
    before->second = tensor;
    names.emplace(of.number, tensors[tensor].name);
  }
  return names;
}

}  // namespace

std::map<std::string, std::string> names_by_order(const std::vector<NumberedParameter>& parameters,
                                                  const std::vector<NamedSizes>& tensors) {
  const bool is_one_group = parameters.front().group == parameters.back().group;
  if (!is_one_group || parameters.size() != tensors.size())
    return names_by_sizes(parameters, tensors);
  std::map<std::string, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const NumberedParameter& of = parameters[i];
    check_input(!of.sizes || *of.sizes == tensors[i].sizes,
                "the optimizer's parameters have numbers, not names, and are not in the model's "
                "order: the state of number {} has sizes {}, '{}' has {}: {}",
                escaped(of.number), sizes_of(of.sizes.value_or(TensorSizes())),
                escaped(tensors[i].name), sizes_of(tensors[i].sizes), remedy);
    names.emplace(of.number, tensors[i].name);
  }
  return names;
}

std::map<std::string, std::string> names_as_given(const std::vector<NumberedParameter>& parameters,
                                                  const std::vector<std::string>& names,
                                                  const std::vector<NamedSizes>& tensors) {
  check_input(names.size() == parameters.size(),
              "expected a name for each parameter of the optimizer ({}), found {}",
              parameters.size(), names.size());
  std::map<std::string, TensorSizes> sizes;
  for (const NamedSizes& tensor : tensors) sizes.emplace(tensor.name, tensor.sizes);
  std::map<std::string, std::string> found;
  std::set<std::string> known;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const NumberedParameter& of = parameters[i];
    check_input(known.insert(names[i]).second,
                "expected a different name for each parameter of the optimizer, found '{}' twice",
                escaped(names[i]));
    if (of.sizes) check_fits(of, names[i], sizes);
    found.emplace(of.number, names[i]);
  }
  return found;
}

}  // namespace lockstep::apps
