// Composition: a model, a mesh and a plan of parallelize() that fit together, and the steps that
// parallelize() takes.
#pragma once

#include "parallel/parallel_model.h"
#include "parallel/pipeline/stages.h"
#include "parallel/tensor/experts.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/parallel/parallelize.h>
#include <lockstep/plan/schedule.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// Tensors of a stage that one handle trains.
struct TensorParts {
  std::shared_ptr<torch::nn::Module> module;
  std::optional<Mesh> tensors;  // ranks over which `cut` divides them; absent: each rank has all
  TensorCut cut;
  Mesh rows;  // ranks that have copies or shards of a rank's parts
  Mesh all;   // both
  bool are_experts = false;
};

// The names of all parameters, tied ones under each of theirs.
[[nodiscard]] std::vector<std::string> parameter_names(const torch::nn::Module& module);
// Erases the rules of the whole model that name none of these tensors and no module around one.
void keep_naming(std::vector<std::string>& patterns, const std::vector<std::string>& names);
void keep_naming(UnitRules& units, const std::vector<std::string>& names);
void keep_naming(TensorPlan& plan, const std::vector<std::string>& names);

class Composition {
 public:
  // Collective. All checks of parallelize(); changes nothing.
  Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh, ParallelPlan plan,
              ParallelOptions options);

  // Marks activations.
  [[nodiscard]] std::shared_ptr<ParallelModelParts> parts() const;
  // Collective: compared, listed and tied. The model as one stage without pp.
  [[nodiscard]] std::unique_ptr<pipeline::PipelineStages> stages(
      const ParallelModelParts& parts) const;
  // Local. A stage with mixtures has two, the experts last; others have one. Empty if each stage
  // is on one rank, so that nothing of it is communicated.
  [[nodiscard]] std::vector<TensorParts> tensor_parts(
      const std::shared_ptr<torch::nn::Module>& stage) const;
  // Collective over the same ranks. Cuts, and makes copies or shards of this rank's parts.
  [[nodiscard]] Handle train(const TensorParts& tensors, ParallelModelParts& parts) const;
  // Of stages that are trained.
  [[nodiscard]] ParallelModel model(std::unique_ptr<pipeline::PipelineStages> stages,
                                    std::shared_ptr<ParallelModelParts> parts) const;

 private:
  [[nodiscard]] int size(const char* axis) const { return mesh_.size(axis); }
  [[nodiscard]] bool has(const char* axis) const { return size(axis) > 1; }
  // An axis fsdp of one rank, too: what ShardOptions say of its parameters holds there.
  [[nodiscard]] bool shards() const { return mesh_.layout().find("fsdp").has_value(); }
  // Whether experts are trained apart: without ep, too, since copies count the tokens of all ranks'
  // rows, as one process does.
  [[nodiscard]] bool has_experts() const {
    return !mixtures_.empty() && mesh_.group().size() > size("pp");
  }
  // Of the options that copies() uses.
  [[nodiscard]] const std::vector<std::string>& ignored() const {
    return shards() ? options_.shard.ignored : options_.data.ignored;
  }
  [[nodiscard]] std::vector<std::string> lines() const;
  void check_axes() const;
  void check_plan() const;
  void check_copies() const;
  void check_units() const;
  void check_ties() const;
  void check_storage() const;
  void check_tensors() const;
  void check_context() const;
  void check_experts() const;
  void check_model() const;
  void cut_stages();
  void make_meshes();
  // Copies or shards of a module on `ranks`, which `parts` lists.
  [[nodiscard]] Handle copies(const std::shared_ptr<torch::nn::Module>& module, const Mesh& ranks,
                              ParallelModelParts& parts) const;
  [[nodiscard]] Handle with_groups(Handle handle) const;
  [[nodiscard]] ParallelModel with_groups_of_mesh(Handle handle,
                                                  std::shared_ptr<ParallelModelParts> parts) const;
  [[nodiscard]] std::string text() const;

  std::shared_ptr<torch::nn::Module> model_;
  const Mesh mesh_;
  ParallelPlan plan_;
  ParallelOptions options_;
  std::vector<tensor_parallel::NamedMixture> mixtures_;
  std::shared_ptr<torch::nn::Module> rest_;  // the model's tensors that are no experts
  std::vector<Stage> stages_;
  std::optional<plan::Schedule> schedule_;
  // The first use of a sub-mesh is collective over the mesh, so all ranks make them at the same
  // place: stages may differ in what they need.
  std::optional<Mesh> data_;        // dp, ep, fsdp
  std::optional<Mesh> copies_;      // dp, cp, fsdp: ranks with the same parts of tp and ep
  std::optional<Mesh> rows_;        // these, and with experts ep: ranks with the same parts of tp
  std::optional<Mesh> whole_rows_;  // with experts and cp: these without cp
  std::optional<Mesh> all_;         // rows_ and tp
  std::optional<Mesh> tensors_;     // with tp or cp: these
};

}  // namespace lockstep
