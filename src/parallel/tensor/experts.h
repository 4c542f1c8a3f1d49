// Separates the experts of a model's mixtures (lockstep/models/mixture.h) from its other tensors.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/global/placement.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/models/mixture.h>
#include <lockstep/parallel/tensor/plan.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

// TokenExchange: sends the tokens of a mixture to the ranks that own their experts, and back.
class TokenExchange final : public models::ExpertExchange {
 public:
  struct Meshes {
    Mesh rows;  // the ranks that share the batch, in its order
    std::optional<Mesh>
        whole_rows;               // with an axis `cp`, whose ranks have parts of rows: without it
    std::optional<Mesh> tensors;  // of the surrounding layers, if these use global tensors
  };
  // `name`: the mixture's, for messages. `sent`: counts the tokens of all mixtures of a model.
  TokenExchange(const Meshes& meshes, std::string name, std::shared_ptr<GroupTraffic> sent);

  [[nodiscard]] at::Tensor enter(const at::Tensor& input) override;
  [[nodiscard]] at::Tensor local(const at::Tensor& around) override;
  [[nodiscard]] std::vector<std::int64_t> runs(std::int64_t tokens) override;
  [[nodiscard]] at::Tensor all_counts(const at::Tensor& counts) override;
  [[nodiscard]] std::int64_t rank() const override { return batch().group.rank(); }
  [[nodiscard]] at::Tensor order(std::int64_t runs) override;
  [[nodiscard]] at::Tensor to_experts(const at::Tensor& rows, const at::Tensor& counts) override;
  [[nodiscard]] at::Tensor back(const at::Tensor& rows, const at::Tensor& counts) override;
  [[nodiscard]] std::vector<std::int64_t> rows_of_experts(const at::Tensor& counts) override;
  [[nodiscard]] at::Tensor own(const at::Tensor& weight) override;
  [[nodiscard]] at::Tensor leave(const at::Tensor& output) override;
  [[nodiscard]] at::Tensor leave_loss(const at::Tensor& part) override;

 private:
  // Ranks with tokens of one batch.
  struct Ranks {
    Mesh mesh;
    Group group;
    std::vector<std::int64_t> peers;  // the ranks of `ep`, as ranks of the group
  };
  struct Sizes {
    std::vector<std::int64_t> sent, received;  // numbers of rows, by rank of `ep`
  };
  [[nodiscard]] static Ranks ranks_of(const Mesh& mesh);
  [[nodiscard]] const Ranks& batch() const {
    return is_cut() || !whole_rows_ ? all_ : *whole_rows_;
  }
  // Returns true if ranks of `cp` have parts of the rows of the latest input, not all of each.
  [[nodiscard]] bool is_cut() const { return !cut_.empty(); }
  [[nodiscard]] Sizes sizes_of(const at::Tensor& counts) const;
  [[nodiscard]] at::Tensor of_experts(const at::Tensor& counts) const;
  void count(const std::vector<std::int64_t>& rows, const at::Tensor& of);

  Ranks all_;
  std::optional<Ranks> whole_rows_;  // with an axis `cp`
  Group experts_;
  std::optional<Mesh> tensors_;
  std::string name_;
  std::shared_ptr<GroupTraffic> sent_;
  // Describe the latest input: the sizes of the whole and its placements, if it is global; and its
  // placement as shards of tokens along `cp`, if any.
  std::vector<std::int64_t> sizes_;
  Placements placements_, cut_;
};

struct NamedMixture {
  std::string name;  // "" for the module itself
  models::MixtureImpl* mixture = nullptr;
};

[[nodiscard]] std::vector<NamedMixture> mixtures_of(torch::nn::Module& module);

// Modules with the same tensors, under the same names.
struct SeparateTensors {
  std::shared_ptr<torch::nn::Module> rest;
  std::shared_ptr<torch::nn::Module> experts;  // null for a module without mixtures
};

// Not collective; changes nothing.
[[nodiscard]] SeparateTensors separate_experts(torch::nn::Module& module);

// Not collective. Shards the list of experts; each expert is whole on one rank.
[[nodiscard]] TensorPlan plan_of_experts(const torch::nn::Module& experts);

// Not collective. Makes the mixtures of `module` send tokens to the ranks that own their experts.
// `sent` counts the tokens.
void exchange_tokens(torch::nn::Module& module, const TokenExchange::Meshes& meshes,
                     const std::shared_ptr<GroupTraffic>& sent);

}  // namespace lockstep::tensor_parallel
