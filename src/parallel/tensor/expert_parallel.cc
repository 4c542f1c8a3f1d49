#include <lockstep/parallel/tensor/expert_parallel.h>

#include "base/check.h"
#include "module/rank_check.h"
#include "module/tensors.h"
#include "parallel/separate_parts.h"
#include "parallel/tensor/experts.h"
#include "parallel/tensor/strategies.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/global/tensor.h>
#include <lockstep/module/module_ref.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

class ExpertParallelState final : public parallel::CompositeState {
 public:
  ExpertParallelState(std::shared_ptr<torch::nn::Module> module, Mesh mesh,
                      ExpertParallelOptions options);

  [[nodiscard]] const std::string& plan() const { return plan_; }
  [[nodiscard]] GroupTraffic tokens_sent() const { return sent_->total; }
  [[nodiscard]] at::Tensor cut(const at::Tensor& batch) const {
    if (!has("cp")) return batch;
    return tensor_parallel::cut_sequence(
        batch, *tensors_,
        Shard(options_.sequence_dim).zigzag(options_.balance == ContextBalance::zigzag));
  }

  void detach() override {
    CompositeState::detach();
    all_ = {};
  }
  [[nodiscard]] StepTiming timing() const override { return all_.timing(); }
  [[nodiscard]] const Group& group() const override { return mesh_.group(); }
  [[nodiscard]] std::optional<Mesh> mesh() const override { return mesh_; }

 private:
  void check_all() const;
  void check_plan() const;
  // Whether the axis has several ranks.
  [[nodiscard]] bool has(std::string_view axis) const { return mesh_.size(axis) > 1; }
  [[nodiscard]] Mesh tensor_mesh() const;
  [[nodiscard]] Handle train_rest(const std::shared_ptr<torch::nn::Module>& rest);
  [[nodiscard]] Handle train_experts(const std::shared_ptr<torch::nn::Module>& experts);

  std::shared_ptr<torch::nn::Module> module_;
  const Mesh mesh_;
  const Mesh rows_;                 // all axes but tp
  std::optional<Mesh> whole_rows_;  // with several ranks on cp: these without it
  const ExpertParallelOptions options_;
  std::string plan_;
  tensor_parallel::SeparateTensors separate_;  // outlives the handles on references to it
  std::shared_ptr<tensor_parallel::TokenExchange::Sent> sent_ =
      std::make_shared<tensor_parallel::TokenExchange::Sent>();
  std::optional<Mesh> tensors_;  // with tp or cp: of the global tensors of what is no expert
  Handle all_;
};

ExpertParallelState::ExpertParallelState(std::shared_ptr<torch::nn::Module> module, Mesh mesh,
                                         ExpertParallelOptions options)
    : module_(std::move(module)),
      mesh_(std::move(mesh)),
      rows_(without(mesh_, "tp")),
      options_(options_on(mesh_, std::move(options))) {
  check(module_ != nullptr, "expert_parallel: expected a module, found none");
  check_all();
  if (has("cp")) whole_rows_ = without(rows_, "cp");
  separate_ = tensor_parallel::separate_experts(*module_);
  std::vector<Handle> handles;
  handles.push_back(train_rest(separate_.rest));
  check(handles.front().is_attached(),
        "expert_parallel: expected a handle of the strategy, found none");
  if (separate_.experts) handles.push_back(train_experts(separate_.experts));
  all_ = HandleState::handle_of(
      std::make_shared<parallel::SeparateParts>(*module_, std::move(handles)));
  add_child(all_);
  aborts(mesh_);
  aborts(rows_);
  if (whole_rows_) aborts(*whole_rows_);
  tensor_parallel::exchange_tokens(*module_, {rows_, whole_rows_, tensors_}, sent_);
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

Handle ExpertParallelState::train_rest(const std::shared_ptr<torch::nn::Module>& rest) {
  if (has("cp")) {
    ContextParallel context = context_parallel(
        rest, tensor_mesh(),
        {.method = options_.method,
         .balance = options_.balance,
         .sequence_dim = options_.sequence_dim,
         .plan = options_.plan,
         .sequence_parallel = options_.sequence_parallel,
         .strategy = [this](torch::nn::Module& parts) { return options_.strategy(parts, rows_); },
         .mesh = mesh_});
    tensors_ = context.tensors();
    return context;
  }
  if (!has("tp")) return options_.strategy(*rest, rows_);
  tensors_ = mesh_.sub_mesh({"tp"});
  // A stage may have nothing that the plan names: it is replicated.
  const auto state = std::make_shared<TensorParallelState>(
      rest, *tensors_,
      TensorCut{.plan = options_.plan,
                .sequence_parallel = options_.sequence_parallel,
                .sequence_dim = options_.sequence_dim},
      mesh_);
  state->train(options_.strategy(*state->parts(), rows_));
  return HandleState::handle_of(state);
}

Handle ExpertParallelState::train_experts(const std::shared_ptr<torch::nn::Module>& experts) {
  std::vector<std::string> others = names_of(rows_);
  std::erase(others, "ep");
  const int ranks = mesh_.size("ep");
  std::int64_t bytes = 0;
  for (const at::Tensor& weight : experts->parameters())
    bytes += static_cast<std::int64_t>(weight.nbytes());
  plan_ = formatted(
      "expert parallel on {}\n  {} weights of experts: {} bytes, {} a rank\n  a mixture: 2 "
      "all_to_alls of tokens in forward, 2 in backward, 1 all_gather of counts",
      mesh_.layout().describe(), experts->parameters().size(), bytes, bytes / ranks);
  const auto state = std::make_shared<TensorParallelState>(
      experts, Mesh(mesh_["ep"], {{"tp", ranks}}),
      TensorCut{.plan = tensor_parallel::plan_of_experts(*experts)}, rows_);
  state->train(others.empty() ? Handle()
                              : options_.strategy(*state->parts(), rows_.sub_mesh(others)));
  Handle handle = HandleState::handle_of(state);
  if (!has("tp")) return handle;
  // Ranks of tp have the same experts, and nothing else gives them the same values.
  for (const NamedPart& part : handle.loading())
    mesh_["tp"].broadcast(part.tensor, 0, {.tag = part.name}).wait();
  return handle;
}

void ExpertParallelState::check_plan() const {
  check(!has("tp") || !options_.plan.empty() || options_.is_stage,
        "expert_parallel: expected a plan for the axis tp of the mesh {}, found none",
        mesh_.layout().describe());
  if (!has("tp")) return;
  (void)describe(options_.plan, *module_, mesh_.size("tp"));
}

void ExpertParallelState::check_all() const {
  check(options_.strategy != nullptr,
        "expert_parallel: expected a strategy for what is no expert, found none");
  check_plan();
  const auto mixtures = tensor_parallel::mixtures_of(*module_);
  check(!mixtures.empty() || options_.is_stage,
        "expert_parallel: expected a model with mixtures of experts, found none");
  const int ranks = mesh_.size("ep");
  for (const auto& [name, mixture] : mixtures) {
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
}

ExpertParallel::ExpertParallel(std::shared_ptr<ExpertParallelState> state)
    : Handle(std::move(state)) {}

at::Tensor ExpertParallel::cut(const at::Tensor& batch) const {
  return static_cast<ExpertParallelState&>(*state()).cut(batch);
}

const std::string& ExpertParallel::plan() const {
  return static_cast<ExpertParallelState&>(*state()).plan();
}

GroupTraffic ExpertParallel::tokens_sent() const {
  return static_cast<ExpertParallelState&>(*state()).tokens_sent();
}

ExpertParallel expert_parallel(std::shared_ptr<torch::nn::Module> module, const Mesh& mesh,
                               ExpertParallelOptions options) {
  return ExpertParallel(
      std::make_shared<ExpertParallelState>(std::move(module), mesh, std::move(options)));
}

ExpertParallel expert_parallel(torch::nn::Module& module, const Mesh& mesh,
                               ExpertParallelOptions options) {
  return expert_parallel(ModuleRef(module).shared("expert_parallel"), mesh, std::move(options));
}

}  // namespace lockstep
