#include <lockstep/parallel/tensor/context_parallel.h>

#include "base/check.h"
#include "global/space.h"
#include "module/rank_check.h"
#include "parallel/tensor/strategies.h"
#include "parallel/tensor/tensor_state.h"

#include <lockstep/global/redistribute.h>
#include <lockstep/global/tensor.h>
#include <lockstep/module/module_ref.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

void check_options(const Mesh& mesh, const ContextParallelOptions& options) {
  for (const MeshAxis& axis : mesh.axes())
    check(axis.name == "cp" || axis.name == "tp",
          "context_parallel: expected a mesh of the axes cp and tp, found {}",
          mesh.layout().describe());
  check(mesh.layout().find("cp").has_value(),
        "context_parallel: expected a mesh with an axis cp, found {}", mesh.layout().describe());
  const std::optional<int> parts = mesh.layout().find("tp");
  check(!options.sequence_parallel || mesh.size("tp") == 1 || mesh.layout().find("cp") < parts,
        "context_parallel: sequence_parallel: expected a mesh of the axes cp and tp in this order, "
        "found {}",
        mesh.layout().describe());
  check(options.sequence_dim >= 0,
        "context_parallel: expected a sequence_dim of at least 0, found {}", options.sequence_dim);
  tensor_parallel::check_options({.strategy = options.strategy, .mesh = options.mesh});
  const bool is_ring = options.method == ContextMethod::ring;
  const bool is_zigzag = options.balance == ContextBalance::zigzag;
  modules::check_same_lines(mesh.group(),
                            {formatted("method: {}", is_ring ? "ring" : "ulysses"),
                             formatted("balance: {}", is_zigzag ? "zigzag" : "contiguous"),
                             formatted("sequence_dim: {}", options.sequence_dim)},
                            {.tag = "context_parallel"});
}

Mesh own_mesh(const Mesh& mesh, const ContextParallelOptions& options) {
  check_options(mesh, options);
  return global::mesh_of_handle(mesh);
}

// A plan for an absent axis is ignored.
TensorPlan plan_on(const Mesh& mesh, const TensorPlan& plan) {
  return mesh.size("tp") > 1 ? plan : TensorPlan();
}

}  // namespace

class ContextParallelState final : public TensorParallelState {
 public:
  ContextParallelState(std::shared_ptr<torch::nn::Module> module, const Mesh& mesh,
                       const ContextParallelOptions& options)
      : TensorParallelState(std::move(module), own_mesh(mesh, options),
                            {.plan = plan_on(mesh, options.plan),
                             .sequence_parallel = options.sequence_parallel && mesh.size("tp") > 1,
                             .sequence_dim = options.sequence_dim,
                             .attention_by_heads = options.method == ContextMethod::ulysses},
                            options.mesh),
        cut_(Shard(options.sequence_dim).zigzag(options.balance == ContextBalance::zigzag)) {
    aborts(mesh);  // tensors on it may be on their way to the module
    Handle of_parts = tensor_parallel::handle_of_parts(
        *this, {.strategy = options.strategy, .mesh = options.mesh});
    if (options.strategy) check_ranks(of_parts.group());
    train(std::move(of_parts));
  }

  [[nodiscard]] at::Tensor cut(const at::Tensor& batch) const {
    return tensor_parallel::cut_sequence(batch, tensors(), cut_);
  }

  [[nodiscard]] std::int64_t scores() const {
    std::lock_guard lock(space().traffic_mutex);
    return space().scores;
  }

 private:
  [[nodiscard]] global::Space& space() const { return global::Space::of(tensors()); }

  // It must add up what the ranks of `cp` have, and nothing of other ranks of `tp`.
  void check_ranks(Group group) const {
    const int parts = tensors().coordinate("tp");
    const at::Tensor own = at::tensor({tensors().coordinate("cp"), parts}, at::kInt);
    const at::Tensor all = at::empty({group.size(), 2}, at::kInt);
    group.all_gather(all, own, {.tag = "context_parallel"}).wait();
    std::vector<int> ranks(static_cast<std::size_t>(tensors().size("cp")));
    bool is_right = true;
    for (int r = 0; r < group.size(); ++r) {
      ++ranks.at(static_cast<std::size_t>(all[r][0].item<int>()));
      is_right = is_right && all[r][1].item<int>() == parts;
    }
    for (int count : ranks) is_right = is_right && count == ranks.front();
    check(is_right,
          "context_parallel: expected a strategy over ranks that all of cp, and one of tp, are "
          "among, such as mesh.sub_mesh({{\"dp\", \"cp\"}}), found another group of {} ranks",
          group.size());
  }

  const Placement cut_;
};

at::Tensor tensor_parallel::cut_sequence(const at::Tensor& batch, const Mesh& tensors,
                                         Placement cut) {
  check(batch.defined() && !is_global(batch),
        "cut: expected a plain tensor, found {}; a batch is cut once",
        batch.defined() ? "a global one" : "an undefined one");
  check(batch.dim() > cut.dim(),
        "cut: expected a tensor whose dim {} is the sequence (sequence_dim), found one of {} dims",
        cut.dim(), batch.dim());
  Placements whole(tensors.axes().size()), to = whole;
  to[static_cast<std::size_t>(tensors.layout().axis("cp"))] = cut;
  return redistribute(from_local(batch, tensors, whole), to);
}

ContextParallel::ContextParallel(std::shared_ptr<ContextParallelState> state)
    : Handle(std::move(state)) {}

at::Tensor ContextParallel::cut(const at::Tensor& batch) const {
  return static_cast<ContextParallelState&>(*state()).cut(batch);
}

const Mesh& ContextParallel::tensors() const {
  return static_cast<ContextParallelState&>(*state()).tensors();
}

std::int64_t ContextParallel::scores() const {
  return static_cast<ContextParallelState&>(*state()).scores();
}

ContextParallel context_parallel(std::shared_ptr<torch::nn::Module> module, const Mesh& mesh,
                                 const ContextParallelOptions& options) {
  return ContextParallel(std::make_shared<ContextParallelState>(std::move(module), mesh, options));
}

ContextParallel context_parallel(torch::nn::Module& module, const Mesh& mesh,
                                 const ContextParallelOptions& options) {
  return context_parallel(ModuleRef(module).shared("context_parallel"), mesh, options);
}

ContextParallel context_parallel(torch::nn::Module& module, Group group,
                                 const ContextParallelOptions& options) {
  const int ranks = group.size();
  return context_parallel(module, Mesh(std::move(group), {{"cp", ranks}}), options);
}

}  // namespace lockstep
