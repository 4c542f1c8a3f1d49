#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include "base/check.h"
#include "parallel/tensor/strategies.h"

#include <utility>

namespace lockstep {

void tensor_parallel::check_options(const TensorParallelOptions& options) {
  check((options.strategy != nullptr) == options.mesh.has_value(),
        "parallelize: expected a strategy together with the mesh of all axes, found {} alone",
        options.strategy ? "a strategy" : "a mesh");
}

Handle tensor_parallel::handle_of_parts(const TensorParallelState& state,
                                        const TensorParallelOptions& options) {
  if (!options.strategy) return {};
  Handle handle = options.strategy(*state.parts());
  check(handle.is_attached(), "parallelize: expected a handle of the strategy, found none");
  const int parts = state.tensors().size("tp"), others = handle.group().size();
  check(options.mesh->group().size() == parts * others,
        "parallelize: expected a mesh of {} ranks, {} for tensor parallelism times {} for the "
        "strategy, found {}",
        parts * others, parts, others, options.mesh->group().size());
  return handle;
}

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
  tensor_parallel::check_options(options);
  const auto state = std::make_shared<TensorParallelState>(
      std::move(module), Mesh(std::move(group), {{"tp", ranks}}),
      TensorCut{.plan = plan,
                .sequence_parallel = options.sequence_parallel,
                .sequence_dim = options.sequence_dim},
      options.mesh);
  state->train(tensor_parallel::handle_of_parts(*state, options));
  return TensorParallel(state);
}

TensorParallel parallelize_tensors(torch::nn::Module& module, Group group, const TensorPlan& plan,
                                   TensorParallelOptions options) {
  return parallelize_tensors(ModuleRef(module).shared("parallelize_tensors"), std::move(group),
                             plan, std::move(options));
}

}  // namespace lockstep
