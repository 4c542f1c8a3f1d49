#include <lockstep/parallel/threads/data_parallel.h>

#include "base/check.h"
#include "parallel/threads/replica_state.h"

#include <utility>

namespace lockstep {
namespace {

threads::ReplicaState& replicas_behind(const std::shared_ptr<HandleState>& state) {
  return static_cast<threads::ReplicaState&>(*state);
}

}  // namespace

namespace threads {

void refuse_replica_type(int device) {
  throw InvalidArgument(formatted(
      "DataParallel: the replica for device {} has another class than the model", device));
}

}  // namespace threads

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> model,
                                   std::vector<ComputeDevice> devices,
                                   const ReplicaOptions& options)
    : Handle(sys::make_shared_of_process<threads::ReplicaState>(std::move(model),
                                                                std::move(devices), options)) {}

const std::vector<ComputeDevice>& DataParallelBase::devices() const {
  return replicas_behind(state()).devices();
}

const std::vector<std::shared_ptr<torch::nn::Module>>& DataParallelBase::replicas() const {
  return replicas_behind(state()).modules();
}

at::Tensor DataParallelBase::run_backward(const Loss& loss, const std::vector<at::Tensor>& inputs) {
  return replicas_behind(state()).backward(loss, inputs);
}

at::Tensor DataParallelBase::run_forward(const Forward& forward,
                                         const std::vector<at::Tensor>& inputs) {
  return replicas_behind(state()).forward(forward, inputs);
}

}  // namespace lockstep
