#include "parallel/tensor/expert_state.h"

#include "base/check.h"
#include "module/rank_check.h"
#include "module/state_entries.h"
#include "module/tensors.h"
#include "parallel/tensor/module_of_parts.h"

#include <lockstep/dispatch/deferral.h>
#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {
namespace {

std::vector<std::string> names_of(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
  return names;
}

bool has_tensor_axis(const Mesh& mesh) {
  return std::ranges::any_of(mesh.axes(), [](const MeshAxis& axis) { return axis.name == "tp"; });
}

Mesh without_tensor_axis(const Mesh& mesh) {
  std::vector<std::string> names = names_of(mesh);
  return std::erase(names, "tp") == 0 || names.empty() ? mesh : mesh.sub_mesh(names);
}

}  // namespace

ExpertParallelState::ExpertParallelState(std::shared_ptr<torch::nn::Module> module, Mesh mesh,
                                         ExpertParallelOptions options)
    : module_(std::move(module)),
      mesh_(std::move(mesh)),
      rows_(without_tensor_axis(mesh_)),
      options_(std::move(options)) {
  check(module_ != nullptr, "expert_parallel: expected a module, found none");
  const std::vector<Found> mixtures = check_all();
  for (const modules::StateEntry& entry : modules::state_entries(*module_)) {
    place_.emplace(entry.names.front(), aliases_.size());
    aliases_.emplace_back(entry.names.begin() + 1, entry.names.end());
    is_expert_[entry.names.front()] = false;
  }
  for (const auto& [name, mixture] : mixtures)
    for (const char* weight : {"up", "down"})
      is_expert_.at(name.empty() ? weight : name + "." + weight) = true;
  Tensors rest, experts;
  const modules::ModuleTensors tensors = modules::tensors_of(*module_);
  auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    tensor_parallel::PartedTensor one;
    one.name = name;
    one.leaves = {tensor};
    one.is_buffer = is_buffer;
    (is_expert_.at(name) ? experts : rest).push_back(std::move(one));
  };
  for (const NamedParameter& one : tensors.parameters) add(one.name, one.tensor, false);
  for (const auto& [name, tensor] : tensors.buffers) add(name, tensor, true);
  rest_module_ = tensor_parallel::module_of_parts(rest);
  experts_module_ = tensor_parallel::module_of_parts(experts);
  train_rest();
  check(rest_.is_attached(), "expert_parallel: expected a handle of the strategy, found none");
  train_experts(experts);
  for (const auto& [name, mixture] : mixtures)
    mixture->set_exchange(
        std::make_shared<tensor_parallel::TokenExchange>(rows_, tensors_, name, sent_));
}

void ExpertParallelState::train_rest() {
  if (options_.plan.empty()) {
    rest_ = options_.strategy(*rest_module_, rows_);
    return;
  }
  TensorParallel rest = parallelize(
      *rest_module_, mesh_["tp"], options_.plan,
      {.strategy = [this](torch::nn::Module& parts) { return options_.strategy(parts, rows_); },
       .mesh = mesh_});
  tensors_ = rest.tensors();
  rest_ = std::move(rest);
}

void ExpertParallelState::check_plan() const {
  const bool has_axis = has_tensor_axis(mesh_);
  check(has_axis || options_.plan.empty(),
        "expert_parallel: expected a mesh with an axis tp for a plan, found {}",
        mesh_.layout().describe());
  check(!has_axis || !options_.plan.empty(),
        "expert_parallel: expected a plan for the axis tp of the mesh {}, found none",
        mesh_.layout().describe());
  if (!has_axis) return;
  for (const at::Tensor& tensor : module_->parameters())
    check(!dispatch::is_deferred(tensor),
          "expert_parallel: expected a model with values on a mesh with an axis tp, found a "
          "deferred one");
  (void)describe(options_.plan, *module_, mesh_.size("tp"));
}

std::vector<ExpertParallelState::Found> ExpertParallelState::check_all() const {
  const std::vector<std::string> axes = names_of(mesh_);
  check(std::ranges::find(axes, "ep") != axes.end(),
        "expert_parallel: expected a mesh with an axis ep, found {}", mesh_.layout().describe());
  check(options_.strategy != nullptr,
        "expert_parallel: expected a strategy for what is no expert, found none");
  check_plan();
  std::vector<Found> found;
  for (const auto& item : module_->named_modules("", /*include_self=*/true))
    if (auto* mixture = item.value()->as<models::MixtureImpl>())
      found.push_back({item.key(), mixture});
  check(!found.empty(), "expert_parallel: expected a model with mixtures of experts, found none");
  const int ranks = mesh_.size("ep");
  for (const auto& [name, mixture] : found) {
    const std::int64_t experts = mixture->options().experts;
    check(experts % ranks == 0,
          "expert_parallel: {}: expected experts that {} ranks divide, found {}", name, ranks,
          experts);
    check(!is_global(mixture->up),
          "expert_parallel: {}: expected a mixture with all its experts, found one whose experts "
          "are on several ranks",
          name);
  }
  modules::check_same_lines(mesh_.group(), modules::lines_of(modules::tensors_of(*module_)),
                            {.tag = "expert_parallel"});
  return found;
}

void ExpertParallelState::train_experts(const Tensors& experts) {
  std::vector<std::string> others = names_of(rows_);
  std::erase(others, "ep");
  std::int64_t bytes = 0;
  TensorPlan plan;
  for (const tensor_parallel::PartedTensor& one : experts) {
    plan.emplace_back(one.name, Vocabulary());
    bytes += static_cast<std::int64_t>(one.leaves.front().nbytes());
    // Ranks of tp have the same experts, and nothing else gives them the same values.
    if (tensors_) mesh_["tp"].broadcast(one.leaves.front().detach(), 0, {.tag = one.name}).wait();
  }
  const int ranks = mesh_.size("ep");
  plan_ = formatted(
      "expert parallel on {}\n  {} weights of experts: {} bytes, {} a rank\n  a mixture: 2 "
      "all_to_alls of tokens in forward, 2 in backward, 1 all_gather of counts",
      mesh_.layout().describe(), experts.size(), bytes, bytes / ranks);
  TensorParallelOptions options;
  if (!others.empty()) {
    const Mesh replicas = rows_.sub_mesh(others);
    options.strategy = [this, replicas](torch::nn::Module& parts) {
      return options_.strategy(parts, replicas);
    };
    options.mesh = rows_;
  }
  experts_ = parallelize(*experts_module_, mesh_["ep"], plan, std::move(options));
}

void ExpertParallelState::detach() {
  unsynchronized_.clear();
  experts_ = {};
  rest_ = {};
}

std::vector<NamedPart> ExpertParallelState::in_order(std::vector<NamedPart> parts) const {
  auto place = [this](const NamedPart& part) { return place_.at(part.name); };
  for (NamedPart& part : parts) part.aliases = aliases_[place(part)];
  std::ranges::stable_sort(parts, {}, place);
  return parts;
}

std::vector<NamedPart> ExpertParallelState::named_parameters() const {
  std::vector<NamedPart> all = rest_.named_parameters();
  std::ranges::move(experts_.named_parameters(), std::back_inserter(all));
  return in_order(std::move(all));
}

void ExpertParallelState::zero_grad(bool set_to_none) {
  rest_.zero_grad(set_to_none);
  experts_.zero_grad(set_to_none);
}

void ExpertParallelState::pause() {
  if (paused_++ > 0) return;
  unsynchronized_.push_back(rest_.no_sync());
  unsynchronized_.push_back(experts_.no_sync());
}

void ExpertParallelState::resume() {
  if (--paused_ == 0) unsynchronized_.clear();
}

std::map<std::string, at::Tensor> ExpertParallelState::state_dict() {
  std::map<std::string, at::Tensor> all = rest_.state_dict();
  all.merge(experts_.state_dict());
  for (const auto& [name, place] : place_)
    for (const std::string& alias : aliases_[place]) all[alias] = all.at(name);
  return all;
}

void ExpertParallelState::load_state_dict(const std::map<std::string, at::Tensor>& tensors) {
  std::map<const void*, at::Tensor> values;
  for (const modules::Assignment& one : modules::assignments_of(*module_, tensors))
    values[one.tensor.unsafeGetTensorImpl()] = one.values;
  std::map<std::string, at::Tensor> of_rest, of_experts;
  for (const modules::StateEntry& entry : modules::state_entries(*module_)) {
    const std::string& name = entry.names.front();
    (is_expert_.at(name) ? of_experts : of_rest)[name] =
        values.at(entry.tensor.unsafeGetTensorImpl());
  }
  rest_.load_state_dict(of_rest);
  experts_.load_state_dict(of_experts);
}

std::vector<NamedPart> ExpertParallelState::state_parts() {
  std::vector<NamedPart> all = rest_.state_parts();
  std::ranges::move(experts_.state_parts(), std::back_inserter(all));
  return in_order(std::move(all));
}

void ExpertParallelState::load_state_parts(const std::function<void(const NamedPart&)>& read) {
  auto read_with_names = [&](NamedPart part) {
    part.aliases = aliases_[place_.at(part.name)];
    read(part);
  };
  rest_.load_state_parts(read_with_names);
  experts_.load_state_parts(read_with_names);
}

HandleMemory ExpertParallelState::memory() const {
  HandleMemory all = rest_.memory();
  const HandleMemory of_experts = experts_.memory();
  all.shards += of_experts.shards;
  all.whole += of_experts.whole;
  all.gradients += of_experts.gradients;
  all.in_flight += of_experts.in_flight;
  all.peak_in_flight += of_experts.peak_in_flight;
  all.pooled += of_experts.pooled;
  all.offloaded += of_experts.offloaded;
  return all;
}

double ExpertParallelState::seconds_waited() const {
  return rest_.seconds_waited() + experts_.seconds_waited();
}

}  // namespace lockstep
