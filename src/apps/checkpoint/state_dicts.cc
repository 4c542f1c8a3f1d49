#include "apps/checkpoint/state_dicts.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/optimizer_state.h"
#include "sys/plain_file.h"

#include <ATen/core/Dict.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace lockstep::apps {
namespace {

// Usual places of a model and of an optimizer, the likeliest first.
const std::vector<std::string> model_places = {"model", "state_dict", "model_state_dict", "module",
                                               "app.model"};
const std::vector<std::string> optimizer_places = {
    "optimizer", "optim", "optimizer_state_dict", "optimizer_state", "app.optimizer", "app.optim"};

constexpr std::size_t most_values = 4 << 20, most_nested = 100, most_bytes = 1 << 30;

std::string key_text(const c10::IValue& key) {
  return key.isInt() ? std::to_string(key.toInt()) : key.toStringRef();
}

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char letter) { return letter >= '0' && letter <= '9'; });
}

// Returns the components of `path` after `place`, or std::nullopt if it is not below `place`.
std::optional<std::span<const std::string>> below(const std::vector<std::string>& path,
                                                  const std::string& place) {
  std::string front;
  for (std::size_t i = 0; i < path.size() && front.size() < place.size(); ++i) {
    front += (i > 0 ? "." : "") + path[i];
    if (front == place && i + 1 < path.size()) return std::span(path).subspan(i + 1);
  }
  return std::nullopt;
}

bool is_below(const std::string& name, const std::string& place) {
  return name.size() > place.size() && name[place.size()] == '.' && name.starts_with(place);
}

bool is_below_any(const std::string& name, const std::vector<std::string>& places) {
  return std::ranges::any_of(places, [&](const std::string& one) { return is_below(name, one); });
}

// Returns true for a statistic of BatchNorm or InstanceNorm, which is not in an optimizer.
bool is_statistic(const std::string& name, const std::set<std::string>& names) {
  for (const std::string end : {"running_mean", "running_var"})
    if (name.ends_with(end) &&
        names.contains(name.substr(0, name.size() - end.size()) + "num_batches_tracked"))
      return true;
  return false;
}

// Returns true for a value that get_extra_state() of a module returned, or a part of it.
bool is_extra_state(const std::vector<std::string>& path) {
  return std::ranges::any_of(path, [](const std::string& key) {
    return key == "_extra_state" || key.ends_with("._extra_state");
  });
}

// Returns the lines of a file of names; empty lines at the end are ignored.
std::vector<std::string> lines_of(const std::filesystem::path& file) {
  constexpr std::uint64_t most_bytes = 64 << 20;
  std::string text = sys::read_plain_file(file, most_bytes);
  std::erase(text, '\r');
  while (text.ends_with('\n')) text.pop_back();
  std::vector<std::string> lines;
  for_each_part(text, '\n', [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

// Converts `step` to the form in a checkpoint. `name` is its name in messages.
checkpoint::TensorSource step_source(const checkpoint::TensorSource& from, std::string name) {
  return {at::kLong, {}, [values = from.values, name = std::move(name)] {
            const auto step = values().item<double>();
            check_input(checkpoint::is_step_count(step),
                        "{}: expected a number of steps from 0 to {}, found {}", name, 0x1p53,
                        step);
            return at::scalar_tensor(static_cast<std::int64_t>(step), at::kLong);
          }};
}

}  // namespace

StateDicts::StateDicts(std::filesystem::path path, const c10::IValue& value)
    : path_(std::move(path)) {
  add({}, value);
}

StateDicts::StateDicts(std::filesystem::path path,
                       const std::shared_ptr<const checkpoint::DistributedFolder>& folder)
    : path_(std::move(path)) {
  for (const auto* item : folder->in_order()) {
    const auto* entry = &item->second;
    Leaf leaf{{}, {}, [folder, entry] { return folder->value(*entry); }, {}};
    for (const c10::IValue& key : entry->path) leaf.path.push_back(key_text(key));
    if (entry->is_tensor)
      leaf.tensor = checkpoint::TensorSource{entry->dtype, entry->sizes,
                                             [folder, entry] { return folder->tensor(*entry); }};
    leaves_.push_back(std::move(leaf));
  }
}

void StateDicts::add(std::vector<std::string> path, const c10::IValue& value) {
  for (const std::string& key : path) path_bytes_ += sizeof key + key.size();
  check_input(++values_ <= most_values && path.size() <= most_nested && path_bytes_ <= most_bytes,
              "{}: expected at most {} values, nested {} times, with paths of {} bytes, found more",
              path_.string(), most_values, most_nested, most_bytes);
  const auto add_below = [&](std::string key, const c10::IValue& item) {
    std::vector<std::string> below = path;
    below.push_back(std::move(key));
    add(std::move(below), item);
  };
  if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) add_below(key_text(item.key()), item.value());
    return;
  }
  // A group's list of parameters is stored as one value.
  if (value.isList() && std::ranges::any_of(value.toListRef(), [](const c10::IValue& item) {
        return item.isGenericDict() || item.isTensor();
      })) {
    for (std::size_t i = 0; i < value.toListRef().size(); ++i)
      add_below(formatted("{}", i), value.toListRef()[i]);
    return;
  }
  Leaf leaf{std::move(path), {}, [value] { return value; }, {}};
  if (value.isTensor()) {
    const at::Tensor tensor = value.toTensor();
    leaf.tensor = checkpoint::TensorSource{tensor.scalar_type(), tensor.sizes().vec(),
                                           [tensor] { return tensor; }};
    if (tensor.numel() > 0)
      leaf.memory =
          formatted("{} {} [{}] [{}]", reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()),
                    c10::toString(tensor.scalar_type()), listed(tensor.sizes(), ","),
                    listed(tensor.strides(), ","));
  }
  leaves_.push_back(std::move(leaf));
}

bool StateDicts::has_below(const std::string& place) const {
  return std::ranges::any_of(
      leaves_, [&](const Leaf& leaf) { return is_below(listed(leaf.path, "."), place); });
}

bool StateDicts::has_level(const std::string& place) const {
  return std::ranges::any_of(leaves_,
                             [&](const Leaf& leaf) { return below(leaf.path, place).has_value(); });
}

bool StateDicts::has_only_usual_places() const {
  bool is_module = true, has_optimizer = false, is_bare = true;
  for (const Leaf& leaf : leaves_) {
    is_bare = is_bare && (leaf.tensor || is_extra_state(leaf.path));
    if (!leaf.tensor) continue;
    const std::string name = listed(leaf.path, ".");
    const bool is_optimizer = is_below_any(name, optimizer_places);
    if (!is_optimizer && !is_below_any(name, model_places)) return false;
    has_optimizer = has_optimizer || is_optimizer;
    is_module = is_module && is_below(name, "module");
  }
  return is_module || has_optimizer || !is_bare;
}

std::string StateDicts::tops() const {
  std::set<std::string> names;
  for (const Leaf& leaf : leaves_)
    if (leaf.path.size() > 1) names.insert(escaped(leaf.path[0], 40));
  std::vector<std::string> few(names.begin(), names.end());
  few.resize(std::min<std::size_t>(few.size(), 12));
  return listed(few, " ");
}

std::string StateDicts::find_place(const std::string& key, const std::vector<std::string>& usual,
                                   const char* what) const {
  if (!key.empty()) {
    check_input(has_below(key), "{}: expected the {} at '{}', found only {}", path_.string(), what,
                escaped(key), tops());
    return key;
  }
  for (const std::string& name : usual)
    if (has_level(name)) return name;
  if (!has_only_usual_places()) return {};
  for (const std::string& name : usual)
    if (has_below(name)) return name;
  return {};
}

std::string StateDicts::model_place(const std::string& key) const {
  std::string place = find_place(key, model_places, "model");
  // A bare state_dict: one dict with dotted names, which has only tensors.
  if (place.empty()) {
    check_input(
        std::ranges::any_of(leaves_, [](const Leaf& leaf) { return leaf.tensor.has_value(); }),
        "{}: expected tensors, found none", path_.string());
    check_input(std::ranges::none_of(leaves_, [](const Leaf& leaf) { return leaf.path.empty(); }),
                "{}: expected a state_dict, found a tensor without a name", path_.string());
    check_input(std::ranges::all_of(leaves_,
                                    [](const Leaf& leaf) {
                                      return (leaf.path.size() == 1 && leaf.tensor) ||
                                             is_extra_state(leaf.path);
                                    }),
                "{}: cannot tell which of these is the model's state_dict; name it with "
                "--model-key KEY: {}",
                path_.string(), tops());
  }
  return place;
}

checkpoint::TensorSources StateDicts::tensors_below(const std::string& place) const {
  checkpoint::TensorSources tensors;
  const std::string prefix = place.empty() ? "" : place + ".";
  for (const Leaf& leaf : leaves_) {
    const std::string name = listed(leaf.path, ".");
    if (!leaf.tensor || !name.starts_with(prefix)) continue;
    if (is_extra_state(leaf.path) && !name.ends_with("_extra_state")) continue;
    check_input(tensors.emplace(name.substr(prefix.size()), *leaf.tensor).second,
                "{}: expected different names, found two tensors named '{}'", path_.string(),
                escaped(name));
  }
  return tensors;
}

std::set<std::string> StateDicts::tied_below(const std::string& model) const {
  std::set<std::string> memories, tied;
  const std::string prefix = model.empty() ? "" : model + ".";
  for (const Leaf& leaf : leaves_)
    if (const std::string name = listed(leaf.path, ".");
        !leaf.memory.empty() && name.starts_with(prefix) && !memories.insert(leaf.memory).second)
      tied.insert(name.substr(prefix.size()));
  return tied;
}

bool StateDicts::has_more_than(const std::string& place) const {
  return std::ranges::any_of(leaves_, [&](const Leaf& leaf) {
    return is_extra_state(leaf.path) ||
           (!place.empty() && !is_below(listed(leaf.path, "."), place));
  });
}

StateDicts::Numbered StateDicts::numbered(const std::string& optimizer) const {
  std::map<std::pair<std::int64_t, std::string>, const Leaf*> members;  // per group
  for (const Leaf& leaf : leaves_)
    if (const auto rest = below(leaf.path, optimizer);
        rest && rest->size() == 3 && (*rest)[0] == "param_groups")
      if (const auto group = parse_integer((*rest)[1])) members[{*group, (*rest)[2]}] = &leaf;
  Numbered found;
  for (const auto& [place, leaf] : members) {
    const auto& [group, member] = place;
    if (member != "params" && member != "param_names") continue;
    const c10::IValue value = leaf->value();
    check_input(value.isList(), "{}: '{}': expected a list, found {}", path_.string(),
                escaped(listed(leaf->path, ".")), value.tagKind());
    for (const c10::IValue& item : value.toListRef()) {
      check_input(item.isInt() || item.isString(),
                  "{}: '{}': expected the numbers or names of parameters, found {}", path_.string(),
                  escaped(listed(leaf->path, ".")), item.tagKind());
      if (member == "params")
        found.parameters.push_back({key_text(item), static_cast<std::size_t>(group), {}});
      else
        found.names.push_back(key_text(item));
    }
  }
  return found;
}

// Sets the sizes of parameters from their states. If one field of a state has the sizes of the
// parameter, all fields except scalars have these sizes.
void StateDicts::add_sizes(const std::string& optimizer,
                           std::vector<NumberedParameter>& parameters) const {
  std::map<std::string, NumberedParameter*> by_number;
  for (NumberedParameter& parameter : parameters) by_number.emplace(parameter.number, &parameter);
  std::set<std::string> differ;
  for (const Leaf& leaf : leaves_) {
    const auto rest = below(leaf.path, optimizer);
    if (!rest || rest->size() != 3 || (*rest)[0] != "state" || !leaf.tensor) continue;
    const auto found = by_number.find((*rest)[1]);
    if ((*rest)[2] == "step" || found == by_number.end()) continue;
    std::optional<TensorSizes>& sizes = found->second->sizes;
    if (sizes && !sizes->empty() && !leaf.tensor->sizes.empty() && *sizes != leaf.tensor->sizes)
      differ.insert(found->first);
    if (!sizes || sizes->empty()) sizes = leaf.tensor->sizes;
  }
  for (const std::string& number : differ) by_number.at(number)->sizes.reset();
}

std::vector<NamedSizes> StateDicts::parameters_of(const std::string& model) const {
  std::set<std::string> names;
  for (const Leaf& leaf : leaves_) names.insert(listed(leaf.path, "."));
  std::vector<NamedSizes> found;
  const std::set<std::string> tied = tied_below(model);
  const std::string prefix = model.empty() ? "" : model + ".";
  for (const Leaf& leaf : leaves_) {
    const std::string name = listed(leaf.path, ".");
    if (!leaf.tensor || !name.starts_with(prefix) || is_extra_state(leaf.path) ||
        !(at::isFloatingType(leaf.tensor->dtype) || at::isComplexType(leaf.tensor->dtype)) ||
        is_statistic(name, names) || tied.contains(name.substr(prefix.size())))
      continue;
    found.push_back({name.substr(prefix.size()), leaf.tensor->sizes});
  }
  return found;
}

std::map<std::string, std::string> StateDicts::names_of(const std::string& optimizer,
                                                        const std::string& model,
                                                        const std::string& parameters,
                                                        std::string& assumed) const {
  auto [numbers, names] = numbered(optimizer);
  if (numbers.empty() && parameters.empty()) return {};  // the state has names only
  add_sizes(optimizer, numbers);
  if (!parameters.empty()) names = lines_of(parameters);
  if (names.empty() && std::ranges::none_of(numbers, is_number, &NumberedParameter::number))
    for (const NumberedParameter& of : numbers) names.push_back(of.number);
  try {
    if (!names.empty()) return names_as_given(numbers, names, parameters_of(model));
    assumed = "the optimizer's parameters have no names: they were taken in the model's order";
    return names_by_order(numbers, parameters_of(model));
  } catch (const BadInput& problem) {
    throw BadInput(
        formatted("{}: {}", parameters.empty() ? path_.string() : parameters, problem.what()));
  }
}

checkpoint::TensorSource StateDicts::field_of(const Leaf& leaf, const std::string& field) const {
  std::optional<checkpoint::TensorSource> tensor = leaf.tensor;
  if (!tensor) {  // a step of older versions
    const c10::IValue value = leaf.value();
    check_input(field == "step" && (value.isInt() || value.isDouble()),
                "{}: expected a tensor for '{}', found a value of type {}", path_.string(),
                escaped(listed(leaf.path, ".")), value.tagKind());
    tensor = checkpoint::TensorSource{
        at::kDouble, {}, [value] { return at::scalar_tensor(value.toScalar(), at::kDouble); }};
  }
  check_input(field != "step" || tensor->bytes() == c10::elementSize(tensor->dtype),
              "{}: expected one number for '{}', found a tensor of sizes [{}]", path_.string(),
              escaped(listed(leaf.path, ".")), listed(tensor->sizes, ", "));
  if (field != "step") return *tensor;
  return step_source(*tensor,
                     formatted("{}: '{}'", path_.string(), escaped(listed(leaf.path, "."))));
}

checkpoint::TensorSources StateDicts::optimizer_state(const std::string& key,
                                                      const std::string& model,
                                                      const std::string& parameters,
                                                      std::string& assumed) const {
  const std::string place = find_place(key, optimizer_places, "optimizer");
  checkpoint::TensorSources state;
  check_input(!place.empty() || parameters.empty(),
              "--parameters {}: expected an optimizer's state_dict in {}, found none", parameters,
              path_.string());
  if (place.empty()) return state;
  const std::map<std::string, std::string> names = names_of(place, model, parameters, assumed);
  constexpr std::string_view states = "state.";
  bool has_tensors = false;
  for (const Leaf& leaf : leaves_) {
    const auto rest = below(leaf.path, place);
    if (!rest) continue;
    const std::string entry = listed(*rest, ".");  // keys of a flattened state_dict have dots
    has_tensors = has_tensors || (leaf.tensor && !entry.starts_with("param_groups."));
    const std::size_t point = entry.rfind('.');
    if (!entry.starts_with(states) || point < states.size()) continue;
    const std::string field = entry.substr(point + 1);
    const std::string parameter = entry.substr(states.size(), point - states.size());
    const auto found = names.find(parameter);
    check_input(found != names.end() || (names.empty() && !is_number(parameter)),
                "{}: the optimizer has a state for '{}', which is not one of its parameters",
                path_.string(), escaped(parameter));
    if (!leaf.tensor && leaf.value().isNone()) continue;
    state.emplace(
        formatted("optimizer.{}.{}", found == names.end() ? parameter : found->second, field),
        field_of(leaf, field));
  }
  check_input(!state.empty() || !has_tensors,
              "{}: expected an optimizer's state_dict at '{}', found tensors that are no states of "
              "parameters; name it with --optimizer-key KEY",
              path_.string(), escaped(place));
  if (state.empty()) assumed.clear();
  return state;
}

}  // namespace lockstep::apps
