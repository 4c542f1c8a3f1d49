#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/tensor/expert_parallel.h>

#include "parallel/tensor/expert_state.h"

#include <utility>

namespace lockstep {

ExpertParallel::ExpertParallel(std::shared_ptr<ExpertParallelState> state)
    : Handle(std::move(state)) {}

at::Tensor ExpertParallel::cut(const at::Tensor& batch) const {
  return static_cast<ExpertParallelState&>(*state()).cut(batch);
}

const std::string& ExpertParallel::plan() const {
  return static_cast<ExpertParallelState&>(*state()).plan();
}

GroupTraffic ExpertParallel::tokens_sent() const {
  return static_cast<ExpertParallelState&>(*state()).tokens_sent();
}

ExpertParallel expert_parallel(std::shared_ptr<torch::nn::Module> module, const Mesh& mesh,
                               ExpertParallelOptions options) {
  return ExpertParallel(
      std::make_shared<ExpertParallelState>(std::move(module), mesh, std::move(options)));
}

ExpertParallel expert_parallel(torch::nn::Module& module, const Mesh& mesh,
                               ExpertParallelOptions options) {
  return expert_parallel(ModuleRef(module).shared("expert_parallel"), mesh, std::move(options));
}

}  // namespace lockstep
