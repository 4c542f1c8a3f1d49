#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include "base/check.h"
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

TensorParallel parallelize_tensors(std::shared_ptr<torch::nn::Module> module, Group group,
                                   const TensorPlan& plan, TensorParallelOptions options) {
  const int ranks = group.size();
  check(ranks == 1 || !plan.empty(),
        "parallelize: expected a tensor plan for {} ranks, found an empty one, which replicates "
        "every layer",
        ranks);
  return TensorParallel(std::make_shared<TensorParallelState>(
      std::move(module), Mesh(std::move(group), {{"tp", ranks}}), plan, std::move(options)));
}

TensorParallel parallelize_tensors(torch::nn::Module& module, Group group, const TensorPlan& plan,
                                   TensorParallelOptions options) {
  return parallelize_tensors(ModuleRef(module).shared("parallelize_tensors"), std::move(group),
                             plan, std::move(options));
}

}  // namespace lockstep
