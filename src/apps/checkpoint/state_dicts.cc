#include "apps/checkpoint/state_dicts.h"

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"

#include <ATen/core/Dict.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::apps {
namespace {

constexpr std::size_t most_leaves = 4 << 20;
constexpr std::size_t most_nested = 100;

std::string joined(const std::vector<std::string>& path, std::size_t from = 0) {
  std::string text;
  for (std::size_t i = from; i < path.size(); ++i) text += (i > from ? "." : "") + path[i];
  return text;
}

std::string key_text(const c10::IValue& key) {
  return key.isInt() ? formatted("{}", key.toInt()) : key.toStringRef();
}

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char letter) { return letter >= '0' && letter <= '9'; });
}

// What modules of PyTorch register as buffers, and an optimizer never has.
bool is_buffer(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var") ||
         name.ends_with("num_batches_tracked");
}

// `step` as a checkpoint has it.
checkpoint::TensorSource step_source(const checkpoint::TensorSource& from) {
  return {at::kLong, {}, [values = from.values] {
            return at::scalar_tensor(static_cast<std::int64_t>(values().item<double>()), at::kLong);
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
  for (const auto& item : folder->entries()) {
    const auto* entry = &item.second;
    Leaf leaf{{}, {}, [folder, entry] { return folder->value(*entry); }};
    for (const c10::IValue& key : entry->path) leaf.path.push_back(key_text(key));
    if (entry->is_tensor)
      leaf.tensor = checkpoint::TensorSource{entry->dtype, entry->sizes,
                                             [folder, entry] { return folder->tensor(*entry); }};
    leaves_.push_back(std::move(leaf));
  }
}

void StateDicts::add(std::vector<std::string> path, const c10::IValue& value) {
  check_input(path.size() <= most_nested && leaves_.size() < most_leaves,
              "{}: expected at most {} values, nested {} times, found more", path_.string(),
              most_leaves, most_nested);
  if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      std::vector<std::string> below = path;
      below.push_back(key_text(item.key()));
      add(std::move(below), item.value());
    }
    return;
  }
  // The list of a group's parameters stays one value.
  if (value.isList() && std::ranges::any_of(value.toListRef(), [](const c10::IValue& item) {
        return item.isGenericDict() || item.isTensor();
      })) {
    for (std::size_t i = 0; i < value.toListRef().size(); ++i) {
      std::vector<std::string> below = path;
      below.push_back(formatted("{}", i));
      add(std::move(below), value.toListRef()[i]);
    }
    return;
  }
  Leaf leaf{std::move(path), {}, [value] { return value; }};
  if (value.isTensor())
    leaf.tensor =
        checkpoint::TensorSource{value.toTensor().scalar_type(), value.toTensor().sizes().vec(),
                                 [tensor = value.toTensor()] { return tensor; }};
  leaves_.push_back(std::move(leaf));
}

bool StateDicts::has_below(const std::string& place, bool tensors) const {
  return std::ranges::any_of(leaves_, [&](const Leaf& leaf) {
    return joined(leaf.path).starts_with(place + ".") && (!tensors || leaf.tensor);
  });
}

std::string StateDicts::tops() const {
  std::set<std::string> names;
  for (const Leaf& leaf : leaves_)
    if (leaf.path.size() > 1) names.insert(visible(leaf.path[0], 40));
  std::vector<std::string> few(names.begin(), names.end());
  few.resize(std::min<std::size_t>(few.size(), 12));
  return listed(few, " ");
}

std::string StateDicts::find_place(const std::string& key, const std::vector<std::string>& usual,
                                   const char* what) const {
  if (!key.empty()) {
    check_input(has_below(key, false), "{}: has no {} at '{}', but {}", path_.string(), what,
                visible(key), tops());
    return key;
  }
  for (const std::string& name : usual)
    if (has_below(name, false)) return name;
  return {};
}

std::string StateDicts::model_place(const std::string& key) const {
  std::string place =
      find_place(key, {"model", "state_dict", "model_state_dict", "module", "app.model"}, "model");
  // A state_dict by itself: names with points in one dict, and nothing but tensors.
  if (place.empty()) {
    check_input(
        std::ranges::any_of(leaves_, [](const Leaf& leaf) { return leaf.tensor.has_value(); }),
        "{}: has no tensors", path_.string());
    check_input(std::ranges::none_of(leaves_, [](const Leaf& leaf) { return leaf.path.empty(); }),
                "{}: expected a state_dict, found a tensor without a name", path_.string());
    check_input(
        !leaves_.empty() &&
            std::ranges::all_of(
                leaves_, [](const Leaf& leaf) { return leaf.path.size() == 1 && leaf.tensor; }),
        "{}: which of these is the model's state_dict? Say --model-key KEY: {}", path_.string(),
        tops());
  }
  return place;
}

checkpoint::TensorSources StateDicts::tensors_below(const std::string& place) const {
  checkpoint::TensorSources tensors;
  const std::string prefix = place.empty() ? "" : place + ".";
  for (const Leaf& leaf : leaves_) {
    const std::string name = joined(leaf.path);
    if (!leaf.tensor || !name.starts_with(prefix)) continue;
    check_input(tensors.emplace(name.substr(prefix.size()), *leaf.tensor).second,
                "{}: two tensors of name '{}'", path_.string(), visible(name));
  }
  return tensors;
}

std::vector<std::string> StateDicts::texts_at(const std::vector<std::string>& path) const {
  std::vector<std::string> texts;
  for (const Leaf& leaf : leaves_) {
    if (leaf.path != path) continue;
    const c10::IValue value = leaf.value();
    if (!value.isList()) continue;
    for (const c10::IValue& item : value.toListRef())
      if (item.isInt() || item.isString()) texts.push_back(key_text(item));
  }
  return texts;
}

std::map<std::string, std::string> StateDicts::names_of_numbers(const std::string& optimizer,
                                                                const std::string& model) const {
  std::vector<std::string> numbers, names;
  for (int group = 0;; ++group) {
    const std::vector<std::string> at{optimizer, "param_groups", formatted("{}", group)};
    auto member = [&](const char* name) {
      std::vector<std::string> path = at;
      path.emplace_back(name);
      return texts_at(path);
    };
    const std::vector<std::string> params = member("params"), named = member("param_names");
    if (params.empty()) break;
    numbers.insert(numbers.end(), params.begin(), params.end());
    names.insert(names.end(), named.begin(), named.end());
  }
  if (numbers.empty()) return {};                                 // a state by names alone
  if (std::ranges::none_of(numbers, is_number)) names = numbers;  // names already
  if (names.empty()) {
    const std::string prefix = model.empty() ? "" : model + ".";
    for (const Leaf& leaf : leaves_)
      if (const std::string name = joined(leaf.path);
          leaf.tensor && name.starts_with(prefix) && !is_buffer(name))
        names.push_back(name.substr(prefix.size()));
  }
  check_input(names.size() == numbers.size(),
              "{}: the optimizer has {} parameters by number, the model {} tensors that may be "
              "these: their names cannot be known (an optimizer that is made from "
              "named_parameters() saves them)",
              path_.string(), numbers.size(), names.size());
  std::map<std::string, std::string> found;
  for (std::size_t i = 0; i < numbers.size(); ++i) found.emplace(numbers[i], names[i]);
  return found;
}

checkpoint::TensorSources StateDicts::optimizer_state(const std::string& key,
                                                      const std::string& model) const {
  const std::string place = find_place(
      key, {"optimizer", "optim", "optimizer_state_dict", "optimizer_state"}, "optimizer");
  checkpoint::TensorSources state;
  if (place.empty()) return state;
  const std::map<std::string, std::string> names = names_of_numbers(place, model);
  for (const Leaf& leaf : leaves_) {
    if (leaf.path.size() < 4 || leaf.path[0] != place || leaf.path[1] != "state") continue;
    const std::string field = leaf.path.back();
    const std::string parameter = joined({leaf.path.begin() + 2, leaf.path.end() - 1});
    const auto found = names.find(parameter);
    check_input(found != names.end() || (names.empty() && !is_number(parameter)),
                "{}: the optimizer has a state of '{}', which is none of its parameters",
                path_.string(), visible(parameter));
    const std::string& name = found == names.end() ? parameter : found->second;
    if (!leaf.tensor && leaf.value().isNone()) continue;
    std::optional<checkpoint::TensorSource> tensor = leaf.tensor;
    if (!tensor) {  // a step of older versions
      const c10::IValue value = leaf.value();
      check_input(field == "step" && (value.isInt() || value.isDouble()),
                  "{}: expected a tensor for '{}', found a value of type {}", path_.string(),
                  visible(joined(leaf.path)), value.tagKind());
      tensor = checkpoint::TensorSource{
          at::kDouble, {}, [value] { return at::scalar_tensor(value.toScalar(), at::kDouble); }};
    }
    check_input(field != "step" || tensor->bytes() == c10::elementSize(tensor->dtype),
                "{}: expected one number for '{}', found a tensor of sizes [{}]", path_.string(),
                visible(joined(leaf.path)), listed(tensor->sizes, ", "));
    state.emplace(formatted("optimizer.{}.{}", name, field),
                  field == "step" ? step_source(*tensor) : *tensor);
  }
  return state;
}

}  // namespace lockstep::apps
