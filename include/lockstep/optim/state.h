// The per-parameter state of our optimizers: the fields of torch::optim, plus fields that keep
// 16-bit parameters exact and compress the state.
//
// An optimizer also accepts plain torch::optim states, which a program, an archive or a checkpoint
// may have put there, and converts them in its next step(). Archives hold the plain form (float32
// tensors under torch::optim's names), so torch::optim can read them. A compressed state loses
// nothing in an archive: its values are restored exactly.
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

// Fields are defined only if they are needed. Scales have one element per block of 256 elements in
// memory order.
class ExtraState {
 public:
  virtual ~ExtraState() = default;
  // Returns every defined field in the plain form, including `step` (int64, no dims). A field that
  // is already plain shares memory with the state.
  [[nodiscard]] virtual NamedFields plain_fields() const = 0;

  at::Tensor master_parameter;  // float32; for 16-bit parameters
};

template <class TorchState>
class AdamStateOf final : public TorchState, public ExtraState {
 public:
  AdamStateOf() = default;
  explicit AdamStateOf(const TorchState& plain) : TorchState(plain) {}

  at::Tensor exp_avg_scale;  // scale of 8-bit codes; exp_avg and exp_avg_sq are uint8 then
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

  std::int64_t step = 0;  // updates made; seeds the random bits of rounding
  at::Tensor momentum_buffer_scale;

  [[nodiscard]] NamedFields plain_fields() const override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
