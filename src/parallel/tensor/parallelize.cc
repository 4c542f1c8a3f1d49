#include <lockstep/parallel/tensor/parallelize.h>

#include "parallel/tensor/tensor_state.h"

#include <utility>

namespace lockstep {

TensorParallel::TensorParallel(std::shared_ptr<TensorParallelState> state)
    : Handle(std::move(state)) {}

const std::string& TensorParallel::plan() const {
  return static_cast<TensorParallelState&>(*state()).plan();
}

const Mesh& TensorParallel::tensors() const {
  return static_cast<TensorParallelState&>(*state()).tensors();
}

TensorParallel parallelize(std::shared_ptr<torch::nn::Module> module, Group group,
                           const TensorPlan& plan, TensorParallelOptions options) {
  const int ranks = group.size();
  return TensorParallel(std::make_shared<TensorParallelState>(
      std::move(module), Mesh(std::move(group), {{"tp", ranks}}), plan, std::move(options)));
}

TensorParallel parallelize(torch::nn::Module& module, Group group, const TensorPlan& plan,
                           TensorParallelOptions options) {
  return parallelize(std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(), &module),
                     std::move(group), plan, std::move(options));
}

}  // namespace lockstep
