// ExpertParallelState: what stands behind the handle of expert_parallel().
//
// Two handles: parallelize_tensors() cuts the experts of all mixtures over the ranks of `ep`, and
// the strategy trains all else. What they say of their tensors comes together again here.
#pragma once

#include "parallel/composite_state.h"
#include "parallel/tensor/parted_tensor.h"
#include "parallel/tensor/token_exchange.h"

#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class ExpertParallelState final : public parallel::CompositeState {
 public:
  ExpertParallelState(std::shared_ptr<torch::nn::Module> module, Mesh mesh,
                      ExpertParallelOptions options);

  [[nodiscard]] const std::string& plan() const { return plan_; }
  [[nodiscard]] GroupTraffic tokens_sent() const { return sent_->total; }
  [[nodiscard]] at::Tensor cut(const at::Tensor& batch) const {
    return context_.is_attached() ? context_.cut(batch) : batch;
  }

  void detach() override;
  [[nodiscard]] std::vector<NamedPart> named_parameters() const override;
  [[nodiscard]] std::vector<NamedPart> state_parts() override;
  [[nodiscard]] StepTiming timing() const override { return rest().timing(); }
  [[nodiscard]] const Group& group() const override { return mesh_.group(); }
  [[nodiscard]] std::optional<Mesh> mesh() const override { return mesh_; }

 private:
  using Tensors = std::vector<tensor_parallel::PartedTensor>;
  struct Found {
    std::string name;
    models::MixtureImpl* mixture = nullptr;
  };

  [[nodiscard]] std::vector<Found> check_all() const;
  void check_plan() const;
  // Whether the axis has several ranks.
  [[nodiscard]] bool has(std::string_view axis) const;
  [[nodiscard]] Handle& rest() { return context_.is_attached() ? context_ : rest_; }
  [[nodiscard]] const Handle& rest() const { return context_.is_attached() ? context_ : rest_; }
  [[nodiscard]] Mesh tensor_mesh() const;
  void train_rest();
  void train_experts(const Tensors& experts);
  // In the order of the module, with all names.
  [[nodiscard]] std::vector<NamedPart> in_order(std::vector<NamedPart> parts) const;

  std::shared_ptr<torch::nn::Module> module_;
  const Mesh mesh_;
  const Mesh rows_;                 // all axes but tp
  std::optional<Mesh> whole_rows_;  // with several ranks on cp: these without it
  const ExpertParallelOptions options_;
  std::string plan_;
  std::shared_ptr<tensor_parallel::TokenExchange::Sent> sent_ =
      std::make_shared<tensor_parallel::TokenExchange::Sent>();
  std::map<std::string, std::size_t> place_;       // of a tensor, by its first name
  std::vector<std::vector<std::string>> aliases_;  // by place
  std::shared_ptr<torch::nn::Module> rest_module_, experts_module_;
  Handle rest_;                  // without an axis cp
  ContextParallel context_;      // with it, in its place
  std::optional<Mesh> tensors_;  // with tp or cp: of the global tensors of what is no expert
  TensorParallel experts_;
};

}  // namespace lockstep
