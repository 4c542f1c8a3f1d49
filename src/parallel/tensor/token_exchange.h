// TokenExchange: how the tokens of a mixture get to the ranks that own their experts, and back.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/models/mixture.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

class TokenExchange final : public models::ExpertExchange {
 public:
  // What all mixtures of a model count together.
  struct Sent {
    GroupTraffic total;
  };

  // `mesh`: of the ranks that have the batch together. `tensors`: of the layers around the mixture,
  // where these are global tensors. `name`: of the mixture, for messages.
  TokenExchange(const Mesh& mesh, std::optional<Mesh> tensors, std::string name,
                std::shared_ptr<Sent> sent);

  [[nodiscard]] at::Tensor all_counts(const at::Tensor& counts) override;
  [[nodiscard]] std::int64_t rank() const override { return batch_.rank(); }
  [[nodiscard]] at::Tensor to_experts(const at::Tensor& rows, const at::Tensor& counts) override;
  [[nodiscard]] at::Tensor back(const at::Tensor& rows, const at::Tensor& counts) override;
  [[nodiscard]] std::vector<std::int64_t> rows_of_experts(const at::Tensor& counts) override;
  [[nodiscard]] at::Tensor own(const at::Tensor& weight) override;
  [[nodiscard]] at::Tensor enter(const at::Tensor& around) override;
  [[nodiscard]] at::Tensor leave(const at::Tensor& inside) override;

 private:
  struct Sizes {
    std::vector<std::int64_t> sent, received;  // rows, by rank of `ep`
  };
  [[nodiscard]] Sizes sizes_of(const at::Tensor& counts) const;
  [[nodiscard]] at::Tensor of_experts(const at::Tensor& counts) const;
  // Rows in the order in which they come, as places among those by expert.
  [[nodiscard]] at::Tensor order_of(const at::Tensor& counts) const;
  void count(const std::vector<std::int64_t>& rows, const at::Tensor& of);

  Group batch_, experts_;
  std::optional<Mesh> tensors_;
  std::string name_;
  std::vector<std::int64_t> ranks_;  // of `ep`, as they are numbered in batch_
  std::shared_ptr<Sent> sent_;
};

}  // namespace lockstep::tensor_parallel
