// Composition: a model, a mesh and a plan of parallelize() that fit together, and how to train the
// model or a stage of it.
#pragma once

#include "parallel/parallel_model.h"

#include <lockstep/models/mixture.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/plan/schedule.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class Composition {
 public:
  // Collective. All checks of parallelize(); changes nothing.
  Composition(std::shared_ptr<torch::nn::Module> model, const Mesh& mesh, ParallelPlan plan,
              ParallelOptions options);

  [[nodiscard]] int size(const char* axis) const { return mesh_.size(axis); }
  [[nodiscard]] bool has(const char* axis) const { return size(axis) > 1; }
  // An axis fsdp of one rank, too: what ShardOptions say of its parameters holds there.
  [[nodiscard]] bool shards() const { return mesh_.layout().find("fsdp").has_value(); }
  // What tp, cp, ep, dp and fsdp make of `part`, the model or a stage of it.
  [[nodiscard]] Handle train(std::shared_ptr<torch::nn::Module> part) const;
  // The stages in a pipeline, and the model without one.
  [[nodiscard]] ParallelModel pipelined(std::shared_ptr<ParallelModelParts> parts) const;
  [[nodiscard]] ParallelModel whole(std::shared_ptr<ParallelModelParts> parts) const;
  [[nodiscard]] std::shared_ptr<ParallelModelParts> parts() const;

 private:
  // Whether mixtures are trained by expert_parallel(): without ep, too.
  [[nodiscard]] bool has_experts() const {
    return !mixtures_.empty() && mesh_.group().size() > size("pp");
  }
  // Of the strategy that makes copies().
  [[nodiscard]] const std::vector<std::string>& ignored() const {
    return shards() ? options_.shard.ignored : options_.data.ignored;
  }
  [[nodiscard]] std::vector<std::string> lines() const;
  void check_axes() const;
  void check_plan() const;
  void check_copies() const;
  void check_storage() const;
  void check_tensors() const;
  void check_context() const;
  void check_experts() const;
  void check_model() const;
  void cut_stages();
  void make_meshes();
  // Copies and shards of what is left of a part on `ranks`.
  [[nodiscard]] Handle copies(std::shared_ptr<torch::nn::Module> part, const Mesh& ranks) const;
  [[nodiscard]] Handle trained(std::shared_ptr<torch::nn::Module> part, const Mesh& ranks,
                               Handle handle) const;
  [[nodiscard]] Handle experts(const std::shared_ptr<torch::nn::Module>& part) const;
  [[nodiscard]] std::string text() const;

  std::shared_ptr<torch::nn::Module> model_;
  const Mesh mesh_;
  ParallelPlan plan_;
  ParallelOptions options_;
  std::map<std::string, const models::MixtureImpl*> mixtures_;  // by name
  std::vector<Stage> stages_;
  std::optional<plan::Schedule> schedule_;
  // The first use of a sub-mesh is collective over the mesh, so all ranks make them at the same
  // place: stages may differ in what they need.
  std::optional<Mesh> rows_;                   // dp, cp, fsdp: ranks that have the same parts of tp
  std::optional<Mesh> all_;                    // these and tp
  std::optional<Mesh> experts_;                // these and ep
  std::optional<Mesh> tensors_;                // with cp: tp and cp
  std::optional<Mesh> data_;                   // dp, ep, fsdp
  mutable std::vector<TrainedParts> trained_;  // by copies()
};

}  // namespace lockstep
