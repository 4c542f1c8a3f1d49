// Composition: a model, a mesh and a plan that parallelize() has checked, and its other steps.
#pragma once

#include "parallel/parallel_model.h"
#include "parallel/pipeline/pipeline_state.h"
#include "parallel/tensor/experts.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/parallel/parallelize.h>
#include <lockstep/plan/schedule.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The tensors of a stage that one handle trains.
struct TensorParts {
  std::shared_ptr<torch::nn::Module> module;
  std::optional<Mesh> tensors;  // ranks over which `cut` shards them; absent: each rank has all
  TensorCut cut;
  Mesh rows;  // ranks with replicas or shards of a rank's parts
  Mesh all;   // both
  bool are_experts = false;
};

// Returns the names of all parameters; a tied one under each of its names.
[[nodiscard]] std::vector<std::string> parameter_names(const torch::nn::Module& module);
// Erases patterns (of the whole model) that match neither one of these tensors nor a module that
// contains one.
void keep_naming(std::vector<std::string>& patterns, const std::vector<std::string>& names);
void keep_naming(UnitRules& units, const std::vector<std::string>& names);
void keep_naming(TensorPlan& plan, const std::vector<std::string>& names);

class Composition {
 public:
  // Collective. Makes all checks of parallelize(); changes nothing.
  Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh, ParallelPlan plan,
              ParallelOptions options);

  // Collective. The rest of parallelize().
  [[nodiscard]] ParallelModel model() const;

 private:
  [[nodiscard]] int size(const char* axis) const { return mesh_.size(axis); }
  [[nodiscard]] bool has(const char* axis) const { return size(axis) > 1; }
  // Returns true if there is an axis fsdp, even of size one: ShardOptions then apply to the
  // parameters.
  [[nodiscard]] bool shards() const { return mesh_.layout().find("fsdp").has_value(); }
  // Returns true if experts are trained separately. This may be so without ep, too, because
  // replicas must count the tokens of all ranks' rows, as one process does.
  [[nodiscard]] bool has_experts() const {
    return !mixtures_.empty() && mesh_.group().size() > size("pp");
  }
  // Returns the ignored names in the options that copies() uses.
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

  // Applies activation checkpointing.
  [[nodiscard]] std::shared_ptr<ParallelModelParts> make_parts() const;
  // Collective. With pp: trains this rank's stages.
  [[nodiscard]] Handle train_stages(ParallelModelParts& parts) const;
  // Collective. Without pp: trains the model as one stage.
  [[nodiscard]] Handle train_whole(ParallelModelParts& parts) const;
  [[nodiscard]] StageForward whole_forward() const;
  // Collective over the ranks of each set. Gives the sets their handles.
  void train(std::vector<pipeline::StageSet>& sets, ParallelModelParts& parts) const;
  // Not collective. A stage with mixtures has two TensorParts, the second one for the experts; any
  // other stage has one. Returns an empty list if each stage is on one rank, so that it needs no
  // communication.
  [[nodiscard]] std::vector<TensorParts> tensor_parts(
      const std::shared_ptr<torch::nn::Module>& stage) const;
  // Collective over the ranks of `tensors`. Shards the tensors, and makes replicas or shards of
  // this rank's parts.
  [[nodiscard]] Handle train(const TensorParts& tensors, ParallelModelParts& parts) const;
  // Makes replicas or shards of a module on `ranks`, and adds them to `parts`.
  [[nodiscard]] Handle copies(const std::shared_ptr<torch::nn::Module>& module, const Mesh& ranks,
                              ParallelModelParts& parts) const;
  [[nodiscard]] Handle with_groups(Handle handle) const;
  [[nodiscard]] std::string text() const;

  std::shared_ptr<torch::nn::Module> model_;
  const Mesh mesh_;
  ParallelPlan plan_;
  ParallelOptions options_;
  std::vector<tensor_parallel::NamedMixture> mixtures_;
  std::shared_ptr<torch::nn::Module> rest_;  // the model's tensors except the experts
  std::vector<Stage> stages_;
  std::optional<plan::Schedule> schedule_;
  // Making a sub-mesh is collective over the mesh, so all ranks make all of these here, although
  // stages may need different ones.
  std::optional<Mesh> data_;        // dp, ep, fsdp
  std::optional<Mesh> copies_;      // dp, cp, fsdp: ranks with the same parts along tp and ep
  std::optional<Mesh> rows_;        // these, and with experts ep: the same parts along tp
  std::optional<Mesh> whole_rows_;  // with experts and cp: rows_ without cp
  std::optional<Mesh> all_;         // rows_ and tp
  std::optional<Mesh> tensors_;     // with tp or cp: these axes
};

}  // namespace lockstep
