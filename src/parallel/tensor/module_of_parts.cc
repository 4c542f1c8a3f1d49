#include "parallel/tensor/module_of_parts.h"

#include "base/format.h"

#include <map>
#include <string>

namespace lockstep::tensor_parallel {
namespace {

class Tree {
 public:
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& root() { return at(""); }

  void add(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    const std::size_t dot = name.rfind('.');
    torch::nn::Module& parent = *at(dot == std::string::npos ? "" : name.substr(0, dot));
    const std::string own = dot == std::string::npos ? name : name.substr(dot + 1);
    if (is_buffer) {
      parent.register_buffer(own, tensor);
    } else {
      parent.register_parameter(own, tensor, tensor.requires_grad());
    }
  }

 private:
  const std::shared_ptr<torch::nn::Module>& at(const std::string& path) {
    auto& module = modules_[path];
    if (module) return module;
    module = std::make_shared<torch::nn::Module>("parts");
    if (path.empty()) return module;
    const std::size_t dot = path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot);
    const std::string own = dot == std::string::npos ? path : path.substr(dot + 1);
    return at(parent)->register_module(own, module), module;
  }

  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
};

}  // namespace

std::string name_of_leaf(const std::string& name, std::size_t leaf) {
  return leaf == 0 ? name : formatted("{}#{}", name, leaf);
}

std::vector<std::string> names_of_leaf(const Part& part, std::size_t leaf) {
  std::vector<std::string> names = {name_of_leaf(part.name, leaf)};
  for (const std::string& alias : part.aliases) names.push_back(name_of_leaf(alias, leaf));
  return names;
}

std::shared_ptr<torch::nn::Module> module_of_parts(const std::vector<Part>& all) {
  Tree tree;
  std::size_t leaf = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    leaf = i > 0 && all[i].name == all[i - 1].name ? leaf + 1 : 0;
    for (const std::string& name : names_of_leaf(all[i], leaf))
      tree.add(name, all[i].tensor, all[i].kind == PartKind::buffer);
  }
  return tree.root();
}

}  // namespace lockstep::tensor_parallel
