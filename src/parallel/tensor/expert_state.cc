#include "parallel/tensor/expert_state.h"

#include "base/check.h"
#include "module/rank_check.h"
#include "module/state_entries.h"
#include "module/tensors.h"
#include "parallel/tensor/module_of_parts.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/global/tensor.h>

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

// The names among `names` whose axes have several ranks, in this order.
std::vector<std::string> names_in(const Mesh& mesh, std::initializer_list<const char*> names) {
  std::vector<std::string> found;
  for (const char* name : names)
    if (mesh.size(name) > 1) found.emplace_back(name);
  return found;
}

std::vector<MeshAxis> axes_of_several(const Mesh& mesh) {
  std::vector<MeshAxis> axes = mesh.axes();
  std::erase_if(axes, [](const MeshAxis& axis) { return axis.size == 1; });
  return axes;
}

// If the mesh has no other axis, this rank alone.
Mesh without(const Mesh& mesh, const char* axis) {
  std::vector<std::string> names = names_of(mesh);
  std::erase(names, axis);
  return mesh.sub_mesh(names.empty() ? std::vector<std::string>{"ep"} : names);
}

// A plan for an absent axis is ignored.
ExpertParallelOptions options_on(const Mesh& mesh, ExpertParallelOptions options) {
  if (mesh.size("tp") > 1) return options;
  options.plan.clear();
  options.sequence_parallel = false;
  return options;
}

}  // namespace

bool ExpertParallelState::has(std::string_view axis) const { return mesh_.size(axis) > 1; }

ExpertParallelState::ExpertParallelState(std::shared_ptr<torch::nn::Module> module, Mesh mesh,
                                         ExpertParallelOptions options)
    : module_(std::move(module)),
      mesh_(std::move(mesh)),
      rows_(without(mesh_, "tp")),
      options_(options_on(mesh_, std::move(options))) {
  check(module_ != nullptr, "expert_parallel: expected a module, found none");
  const std::vector<Found> mixtures = check_all();
  if (has("cp")) whole_rows_ = without(rows_, "cp");
  std::map<std::string, bool> is_expert;  // by first name
  for (const modules::StateEntry& entry : modules::state_entries(*module_)) {
    place_.emplace(entry.names.front(), aliases_.size());
    aliases_.emplace_back(entry.names.begin() + 1, entry.names.end());
    is_expert[entry.names.front()] = false;
  }
  for (const auto& [name, mixture] : mixtures)
    for (const char* weight : {"up", "down"})
      is_expert.at(name.empty() ? weight : name + "." + weight) = true;
  Tensors others, experts;
  const modules::ModuleTensors tensors = modules::tensors_of(*module_);
  auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    tensor_parallel::PartedTensor one;
    one.name = name;
    one.leaves = {tensor};
    one.is_buffer = is_buffer;
    (is_expert.at(name) ? experts : others).push_back(std::move(one));
  };
  for (const NamedParameter& one : tensors.parameters) add(one.name, one.tensor, false);
  for (const auto& [name, tensor] : tensors.buffers) add(name, tensor, true);
  rest_module_ = tensor_parallel::module_of_parts(others);
  experts_module_ = tensor_parallel::module_of_parts(experts);
  train_rest();
  check(rest().is_attached(), "expert_parallel: expected a handle of the strategy, found none");
  if (!experts.empty()) train_experts(experts);
  add_child(rest());
  if (experts_.is_attached()) add_child(experts_);
  aborts(mesh_);
  aborts(rows_);
  if (whole_rows_) aborts(*whole_rows_);
  for (const auto& [name, mixture] : mixtures)
    mixture->set_exchange(std::make_shared<tensor_parallel::TokenExchange>(
        tensor_parallel::TokenExchange::Meshes{rows_, whole_rows_, tensors_}, name, sent_));
}

// Of the global tensors around mixtures, with an axis cp.
Mesh ExpertParallelState::tensor_mesh() const {
  Mesh own = mesh_.sub_mesh(options_.sequence_parallel ? names_in(mesh_, {"cp", "tp"})
                                                       : names_in(mesh_, {"tp", "cp"}));
  if (!options_.tensors) return own;
  check(axes_of_several(*options_.tensors) == own.axes(),
        "expert_parallel: tensors: expected a mesh {}, found {}", own.layout().describe(),
        options_.tensors->layout().describe());
  return *options_.tensors;
}

void ExpertParallelState::train_rest() {
  const auto strategy = [this](torch::nn::Module& parts) {
    return options_.strategy(parts, rows_);
  };
  if (has("cp")) {
    context_ = context_parallel(*rest_module_, tensor_mesh(),
                                {.method = options_.method,
                                 .balance = options_.balance,
                                 .sequence_dim = options_.sequence_dim,
                                 .plan = options_.plan,
                                 .sequence_parallel = options_.sequence_parallel,
                                 .strategy = strategy,
                                 .mesh = mesh_});
    tensors_ = context_.tensors();
    return;
  }
  if (!has("tp")) {
    rest_ = options_.strategy(*rest_module_, rows_);
    return;
  }
  // A stage may have nothing that the plan names: it is replicated.
  TensorParallel rest(std::make_shared<TensorParallelState>(
      rest_module_, mesh_.sub_mesh({"tp"}), options_.plan,
      TensorParallelOptions{.sequence_parallel = options_.sequence_parallel,
                            .sequence_dim = options_.sequence_dim,
                            .strategy = strategy,
                            .mesh = mesh_}));
  tensors_ = rest.tensors();
  rest_ = std::move(rest);
}

void ExpertParallelState::check_plan() const {
  check(!has("tp") || !options_.plan.empty() || options_.is_stage,
        "expert_parallel: expected a plan for the axis tp of the mesh {}, found none",
        mesh_.layout().describe());
  if (!has("tp")) return;
  (void)describe(options_.plan, *module_, mesh_.size("tp"));
}

std::vector<ExpertParallelState::Found> ExpertParallelState::check_all() const {
  check(options_.strategy != nullptr,
        "expert_parallel: expected a strategy for what is no expert, found none");
  check_plan();
  std::vector<Found> found;
  // A module that no pointer owns cannot be among them.
  if (auto* mixture = module_->as<models::MixtureImpl>()) found.push_back({"", mixture});
  for (const auto& item : module_->named_modules("", /*include_self=*/false))
    if (auto* mixture = item.value()->as<models::MixtureImpl>())
      found.push_back({item.key(), mixture});
  check(!found.empty() || options_.is_stage,
        "expert_parallel: expected a model with mixtures of experts, found none");
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
  experts_ = parallelize_tensors(*experts_module_, mesh_["ep"], plan, std::move(options));
  if (!has("tp")) return;
  // Ranks of tp have the same experts, and nothing else gives them the same values.
  for (const NamedPart& part : experts_.loading())
    mesh_["tp"].broadcast(part.tensor, 0, {.tag = part.name}).wait();
}

void ExpertParallelState::detach() {
  CompositeState::detach();
  experts_ = {};
  context_ = {};
  rest_ = {};
}

std::vector<NamedPart> ExpertParallelState::in_order(std::vector<NamedPart> parts) const {
  auto place = [this](const NamedPart& part) { return place_.at(part.name); };
  for (NamedPart& part : parts) part.aliases = aliases_[place(part)];
  std::ranges::stable_sort(parts, {}, place);
  return parts;
}

std::vector<NamedPart> ExpertParallelState::named_parameters() const {
  return in_order(CompositeState::named_parameters());
}

std::vector<NamedPart> ExpertParallelState::state_parts() {
  return in_order(CompositeState::state_parts());
}

}  // namespace lockstep
