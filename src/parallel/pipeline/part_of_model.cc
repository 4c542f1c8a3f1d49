#include "parallel/pipeline/part_of_model.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lockstep::pipeline {
namespace {

std::string last_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// Merges modules with the same name that differ into one with the members of all of them.
void merge_into(torch::nn::Module& all, const Modules& modules) {
  std::vector<std::pair<std::string, Modules>> children;
  for (const auto& module : modules) {
    for (const auto& one : module->named_parameters(/*recurse=*/false))
      if (!all.named_parameters(/*recurse=*/false).contains(one.key()))
        all.register_parameter(one.key(), one.value(), one.value().requires_grad());
    for (const auto& one : module->named_buffers(/*recurse=*/false))
      if (!all.named_buffers(/*recurse=*/false).contains(one.key()))
        all.register_buffer(one.key(), one.value());
    for (const auto& child : module->named_children()) {
      auto place =
          std::ranges::find(children, child.key(), &std::pair<std::string, Modules>::first);
      if (place == children.end()) place = children.insert(place, {child.key(), {}});
      Modules& same = place->second;
      if (std::ranges::find(same, child.value()) == same.end()) same.push_back(child.value());
    }
  }
  for (const auto& [name, same] : children) {
    if (same.size() == 1) {
      all.register_module(name, same.front());
    } else {
      merge_into(*all.register_module(name, std::make_shared<torch::nn::Module>("Stage")), same);
    }
  }
}

}  // namespace

void PartOfModel::add_module(const std::string& path, std::shared_ptr<torch::nn::Module> module) {
  around(path).register_module(last_of(path), std::move(module));
}

void PartOfModel::add_parameter(const std::string& path, const at::Tensor& tensor) {
  around(path).register_parameter(last_of(path), tensor, tensor.requires_grad());
}

void PartOfModel::add_buffer(const std::string& path, const at::Tensor& tensor) {
  around(path).register_buffer(last_of(path), tensor);
}

torch::nn::Module& PartOfModel::around(const std::string& path) {
  torch::nn::Module* at = this;
  std::size_t begin = 0;
  for (std::size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
    const std::string name = path.substr(begin, dot - begin);
    if (!at->named_children().contains(name))
      at->register_module(name, std::make_shared<torch::nn::Module>("Stage"));
    at = at->named_children()[name].get();
  }
  return *at;
}

std::shared_ptr<PartOfModel> merged(const Modules& modules) {
  auto all = std::make_shared<PartOfModel>();
  merge_into(*all, modules);
  // Modules that were kept unchanged report their own aliases.
  const std::vector<Alias> told = aliases_of(*all);
  std::vector<Alias> aliases;
  for (const auto& module : modules)
    for (Alias& alias : aliases_of(*module))
      if (std::ranges::find(told, alias.name, &Alias::name) == told.end() &&
          std::ranges::find(aliases, alias.name, &Alias::name) == aliases.end())
        aliases.push_back(std::move(alias));
  all->set_aliases(std::move(aliases));
  return all;
}

}  // namespace lockstep::pipeline
