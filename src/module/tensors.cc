#include "module/tensors.h"

#include "base/check.h"
#include "base/format.h"
#include "module/checks.h"

#include <lockstep/layout/name_pattern.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/module/named_parameters.h>

#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_map>

namespace lockstep::modules {
namespace {

// Returns each tensor once, with all of its names.
std::vector<NamedParameter> each_once(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedParameter> unique;
  std::unordered_map<const void*, std::size_t> seen;
  for (const auto& item : tensors) {
    if (!item.value().defined()) continue;
    auto [found, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), unique.size());
    if (is_new) {
      unique.push_back({item.key(), item.value(), {}});
    } else {
      unique[found->second].aliases.push_back(item.key());
    }
  }
  return unique;
}

bool is_named(const std::string& name, std::span<const std::string> patterns) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return layout::names_around(pattern, name); });
}

// Returns a description of an unsupported tensor, for "buffer mask is ..."; null if it is
// supported.
const char* oddity_of(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "a nested tensor";
  if (tensor.layout() != at::kStrided) return "not a dense tensor";
  if (tensor.is_quantized()) return "a quantized tensor";
  if (tensor.is_meta() || !tensor.has_storage()) return "a tensor without memory";
  if (tensor.is_inference()) return "a tensor that was made inside InferenceMode";
  return nullptr;
}

void check_one(std::string_view strategy, std::string_view kind, const std::string& name,
               const at::Tensor& tensor) {
  if (const char* oddity = oddity_of(tensor))
    throw InvalidArgument(
        formatted("{}: {} {} is {}, which rank 0 cannot give to the other ranks: make an ordinary "
                  "one, or leave it to each rank by .ignored = {{\"{}\"}}",
                  strategy, kind, name, oddity, name));
}

std::string last_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

torch::nn::Module& module_around(const std::string& path, torch::nn::Module& all) {
  torch::nn::Module* at = &all;
  std::size_t begin = 0;
  for (std::size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
    const std::string name = path.substr(begin, dot - begin);
    if (!at->named_children().contains(name))
      at->register_module(name, std::make_shared<torch::nn::Module>(all.name()));
    at = at->named_children()[name].get();
  }
  return *at;
}

std::vector<at::Tensor> all_of(const ModuleTensors& tensors) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : tensors.parameters) all.push_back(parameter.tensor);
  for (const auto& buffer : tensors.buffers) all.push_back(buffer.tensor);
  all.insert(all.end(), tensors.ignored.begin(), tensors.ignored.end());
  return all;
}

// Removes the ignored tensors from both lists, and returns them.
std::vector<at::Tensor> take_ignored(std::vector<NamedParameter>& parameters,
                                     std::vector<NamedParameter>& buffers,
                                     std::span<const std::string> ignored) {
  std::vector<std::string> names;
  for (const auto* list : {&parameters, &buffers})
    for (const NamedParameter& one : *list)
      for (std::string& name : names_of(one)) names.push_back(std::move(name));
  layout::check_patterns("pattern of ignored tensors", ignored, names);
  std::vector<at::Tensor> taken;
  for (auto* list : {&parameters, &buffers})
    std::erase_if(*list, [&](const NamedParameter& one) {
      if (!is_ignored(one, ignored)) return false;
      taken.push_back(one.tensor);
      return true;
    });
  return taken;
}

}  // namespace

std::vector<at::Tensor> ModuleTensors::buffer_tensors() const {
  std::vector<at::Tensor> list;
  for (const NamedTensor& buffer : buffers) list.push_back(buffer.tensor);
  return list;
}

ModuleTensors tensors_of(const torch::nn::Module& module, std::span<const std::string> ignored) {
  ModuleTensors tensors{unique_parameters(module), {}, {}};
  std::vector<NamedParameter> buffers = unique_buffers(module);
  if (!ignored.empty()) tensors.ignored = take_ignored(tensors.parameters, buffers, ignored);
  for (const NamedParameter& one : buffers) tensors.buffers.push_back({one.name, one.tensor});
  return tensors;
}

std::vector<NamedParameter> unique_buffers(const torch::nn::Module& module) {
  return each_once(module.named_buffers());
}

std::vector<std::string> names_of(const NamedParameter& parameter) {
  std::vector<std::string> names = {parameter.name};
  names.insert(names.end(), parameter.aliases.begin(), parameter.aliases.end());
  return names;
}

void add_module(torch::nn::Module& all, const std::string& path,
                std::shared_ptr<torch::nn::Module> module) {
  module_around(path, all).register_module(last_of(path), std::move(module));
}

void add_parameter(torch::nn::Module& all, const std::string& path, const at::Tensor& tensor) {
  module_around(path, all).register_parameter(last_of(path), tensor, tensor.requires_grad());
}

void add_buffer(torch::nn::Module& all, const std::string& path, const at::Tensor& tensor) {
  module_around(path, all).register_buffer(last_of(path), tensor);
}

bool have_equal_values(const at::Tensor& one, const at::Tensor& other) {
  return one.equal(other) || one.allclose(other, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

bool is_ignored(const NamedParameter& parameter, std::span<const std::string> ignored) {
  return std::ranges::any_of(names_of(parameter),
                             [&](const std::string& name) { return is_named(name, ignored); });
}

void check_leaf(const std::string& name, const at::Tensor& tensor, std::string_view strategy) {
  check(tensor.is_leaf(),
        "{}: parameter {} is not a leaf of autograd (it was computed from a tensor that requires a "
        "gradient), so it cannot be trained: register its detach().clone()",
        strategy, name);
}

bool gets_gradient(const at::Tensor& buffer) { return buffer.requires_grad() && buffer.is_leaf(); }

void check_buffer(const std::string& name, const at::Tensor& buffer, std::string_view strategy) {
  check(!gets_gradient(buffer),
        "{}: buffer {} requires a gradient, and only those of parameters are reduced: register it "
        "as a parameter, or call its set_requires_grad(false)",
        strategy, name);
}

void check_ordinary(const ModuleTensors& tensors, std::string_view strategy) {
  for (const auto& [name, tensor, aliases] : tensors.parameters) {
    check_one(strategy, "parameter", name, tensor);
    check_leaf(name, tensor, strategy);
    check(!tensor.requires_grad() || !repeats_elements(tensor),
          "{}: elements of parameter {} share memory (expand() does that), so it cannot be "
          "trained: make it of a clone()",
          strategy, name);
  }
  for (const auto& [name, tensor] : tensors.buffers) {
    check_one(strategy, "buffer", name, tensor);
    check_buffer(name, tensor, strategy);
  }
}

void check_alone(const ModuleTensors& tensors, std::string_view strategy) {
  std::vector<at::Tensor> all = all_of(tensors);
  std::vector<std::optional<std::size_t>> sharing = first_sharing(all);
  std::size_t parameters = tensors.parameters.size();
  auto name_of = [&](std::size_t i) -> std::string {
    if (i < parameters) return tensors.parameters[i].name;
    if (i - parameters < tensors.buffers.size()) return tensors.buffers[i - parameters].name;
    return "an ignored tensor";
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    check(!sharing[i] || *sharing[i] >= parameters,
          "{}: {} and {} share memory, and would not when parameters are divided: register one "
          "tensor under both names, or make one of them of a clone()",
          strategy, name_of(i), sharing[i] ? name_of(*sharing[i]) : "");
  for (const auto& parameter : tensors.parameters)
    check(!is_held_elsewhere(parameter.tensor, all),
          "{}: the memory of {} is in use outside the module: by a view (detach(), data(), t()), "
          "or by the graph of an earlier forward(). That would keep the current values: release it "
          "first, or keep a clone()",
          strategy, parameter.name);
}

std::vector<std::string> lines_of_held(const ModuleTensors& tensors) {
  std::vector<at::Tensor> all = all_of(tensors);
  std::vector<std::string> lines;
  for (const auto& parameter : tensors.parameters)
    if (is_held_elsewhere(parameter.tensor, all))
      lines.push_back(formatted("memory of {} in use outside the module", parameter.name));
  return lines;
}

layout::Dtype spec_of(c10::ScalarType dtype) {
  return {c10::toString(dtype), static_cast<std::int64_t>(c10::elementSize(dtype))};
}

layout::TensorSpec spec_of(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  return {parameter.name, tensor.sizes().vec(), spec_of(tensor.scalar_type()),
          tensor.unsafeGetTensorImpl()};
}

std::string kind_of(const at::Tensor& tensor) {
  return formatted("{} on {}", c10::toString(tensor.scalar_type()), tensor.device().str());
}

std::vector<int> dim_order_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<int> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  if (strides == at::IntArrayRef(c10::contiguous_strides(sizes))) return {};
  std::ranges::stable_sort(order, std::greater(),
                           [&](int dim) { return strides[static_cast<std::size_t>(dim)]; });
  return std::ranges::is_sorted(order) ? std::vector<int>() : order;
}

at::Tensor box_in_part(const at::Tensor& part, const layout::TensorSlice& slice,
                       const layout::Box& box) {
  layout::Strided place = layout::place_of(slice, box);
  return part.as_strided(box.sizes, place.strides, part.storage_offset() + place.offset);
}

at::Tensor box_in_whole(const at::Tensor& whole, const layout::Box& box) {
  at::Tensor view = whole;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    view = view.narrow(static_cast<std::int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  return view;
}

}  // namespace lockstep::modules

namespace lockstep {

std::vector<NamedParameter> unique_parameters(const torch::nn::Module& module) {
  return modules::each_once(module.named_parameters());
}

std::shared_ptr<torch::nn::Module> ModuleRef::shared(std::string_view caller) const {
  check(module_ != nullptr, "{}: expected a module, found a null pointer or an empty holder",
        caller);
  return module_;
}

}  // namespace lockstep
