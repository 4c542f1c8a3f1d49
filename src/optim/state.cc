#include <lockstep/optim/state.h>

#include "optim/state_tensors.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

namespace lockstep::optim {
namespace {

constexpr const char* master_key = "master_parameter";

void write_master(torch::serialize::OutputArchive& archive, const at::Tensor& master) {
  if (master.defined()) archive.write(master_key, c10::IValue(master));
}

at::Tensor read_master(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  return archive.try_read(master_key, value) ? value.toTensor() : at::Tensor();
}

bool is_small(const at::Tensor& values) {
  return values.defined() &&
         (values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kByte);
}

// Returns torch::optim's fields of a state in float32.
template <class TorchState>
TorchState plain_state(const AdamStateOf<TorchState>& state) {
  TorchState plain(state);
  plain.exp_avg(expanded(state.exp_avg(), state.exp_avg_scale, Codes::with_sign));
  plain.exp_avg_sq(expanded(state.exp_avg_sq(), state.exp_avg_sq_scale, Codes::without_sign));
  return plain;
}

torch::optim::SGDParamState plain_state(const SGDState& state) {
  torch::optim::SGDParamState plain(state);
  if (state.momentum_buffer().defined())
    plain.momentum_buffer(
        expanded(state.momentum_buffer(), state.momentum_buffer_scale, Codes::with_sign));
  return plain;
}

}  // namespace

template <class TorchState>
NamedFields AdamStateOf<TorchState>::plain_fields() const {
  TorchState plain = plain_state(*this);
  NamedFields fields{{"step", at::scalar_tensor(plain.step(), at::kLong)},
                     {"exp_avg", plain.exp_avg()},
                     {"exp_avg_sq", plain.exp_avg_sq()}};
  if (plain.max_exp_avg_sq().defined()) fields["max_exp_avg_sq"] = plain.max_exp_avg_sq();
  if (master_parameter.defined()) fields[master_key] = master_parameter;
  return fields;
}

template <class TorchState>
void AdamStateOf<TorchState>::serialize(torch::serialize::OutputArchive& archive) const {
  plain_state(*this).serialize(archive);
  write_master(archive, master_parameter);
}

template <class TorchState>
void AdamStateOf<TorchState>::serialize(torch::serialize::InputArchive& archive) {
  TorchState::serialize(archive);
  master_parameter = read_master(archive);
}

template <class TorchState>
std::unique_ptr<torch::optim::OptimizerParamState> AdamStateOf<TorchState>::clone() const {
  return std::make_unique<AdamStateOf>(*this);
}

template class AdamStateOf<torch::optim::AdamParamState>;
template class AdamStateOf<torch::optim::AdamWParamState>;

NamedFields SGDState::plain_fields() const {
  torch::optim::SGDParamState plain = plain_state(*this);
  NamedFields fields;
  if (plain.momentum_buffer().defined()) fields["momentum_buffer"] = plain.momentum_buffer();
  if (is_small(momentum_buffer())) fields["step"] = at::scalar_tensor(step, at::kLong);
  if (master_parameter.defined()) fields[master_key] = master_parameter;
  return fields;
}

void SGDState::serialize(torch::serialize::OutputArchive& archive) const {
  plain_state(*this).serialize(archive);
  archive.write("step", c10::IValue(step));
  write_master(archive, master_parameter);
}

void SGDState::serialize(torch::serialize::InputArchive& archive) {
  SGDParamState::serialize(archive);
  c10::IValue value;
  if (archive.try_read("step", value)) step = value.toInt();
  master_parameter = read_master(archive);
}

std::unique_ptr<torch::optim::OptimizerParamState> SGDState::clone() const {
  return std::make_unique<SGDState>(*this);
}

}  // namespace lockstep::optim
