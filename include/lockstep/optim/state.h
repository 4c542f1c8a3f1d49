// What our optimizers remember of a parameter: torch::optim's fields, and beside them what keeps
// 16-bit parameters exact and states small.
//
// An optimizer takes plain torch::optim states too (a program, an archive or a checkpoint may put
// them there) and turns them into these in its next step(). Archives hold the plain form, float32
// tensors under torch::optim's names, so torch::optim reads what we write; small formats lose
// nothing by that, because what they can hold comes back as it was.
#pragma once

#include <lockstep/optim/update_options.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::optim {

using NamedFields = std::map<std::string, at::Tensor>;

// Defined where they are needed; one scale for each block of 256 elements in the order of memory.
class ExtraState {
 public:
  virtual ~ExtraState() = default;
  // Every defined field in the plain form, `step` included (int64, no dims). Shares memory with the
  // state where that is plain already.
  [[nodiscard]] virtual NamedFields plain_fields() const = 0;

  at::Tensor master_parameter;  // float32, of a parameter in 16 bits
};

template <class TorchState>
class AdamStateOf final : public TorchState, public ExtraState {
 public:
  AdamStateOf() = default;
  explicit AdamStateOf(const TorchState& plain) : TorchState(plain) {}

  at::Tensor exp_avg_scale;  // of codes: exp_avg and exp_avg_sq are then uint8
  at::Tensor exp_avg_sq_scale;

  [[nodiscard]] NamedFields plain_fields() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
};

using AdamState = AdamStateOf<torch::optim::AdamParamState>;
using AdamWState = AdamStateOf<torch::optim::AdamWParamState>;

class SGDState final : public torch::optim::SGDParamState, public ExtraState {
 public:
  SGDState() = default;
  explicit SGDState(const torch::optim::SGDParamState& plain) : SGDParamState(plain) {}

  std::int64_t step = 0;  // updates made; what the random bits of rounding depend on
  at::Tensor momentum_buffer_scale;

  [[nodiscard]] NamedFields plain_fields() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
