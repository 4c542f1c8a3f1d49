// The state that a handle, its scopes and its hooks share.
#pragma once

#include "layout/flat_layout.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/backward_step.h"
#include "parallel/handle_state.h"
#include "parallel/sharded/unit_reducer.h"
#include "parallel/sharded/unsharder.h"

#include <lockstep/parallel/sharded/fully_shard.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

class ShardedState final : public HandleState {
 public:
  // Local: checks the options.
  ShardedState(sharded::Groups groups, const ShardOptions& options);

  // Collective, once: divides the module's parameters, and begins to reduce gradients.
  void complete(std::shared_ptr<torch::nn::Module> the_module);

  // The hooks go, and released parameters say why they have no values.
  void detach() override;

  [[nodiscard]] std::vector<Part> named_parameters() const override;
  void zero_grad(bool set_to_none) override;
  void check_gradients(std::string_view operation) const override;
  void set_requires_gradient_sync(bool on) override { on ? step->resume() : step->pause(); }

  [[nodiscard]] std::vector<Part> state_parts() override;
  void begin_load() override;
  void end_load(bool complete) override;

  [[nodiscard]] HandleMemory memory() const override;
  [[nodiscard]] std::shared_ptr<optim::StateMemory> state_memory() const override;
  [[nodiscard]] double seconds_waited() const override { return waits->seconds(); }
  [[nodiscard]] Joinable& joinable() override { return *joinable_; }
  [[nodiscard]] StepTiming timing() const override { return step->clock().total(); }
  [[nodiscard]] const Group& group() const override { return groups->whole; }
  [[nodiscard]] std::optional<Mesh> mesh() const override { return groups->mesh; }

  void unshard();
  void reset_peak_memory();

  std::shared_ptr<torch::nn::Module> module;
  const std::shared_ptr<sharded::Groups> groups;
  std::shared_ptr<sharded::LazyGradients> deferred;  // null: averaged in backward()
  std::unique_ptr<sharded::Unsharder> unsharder;
  std::shared_ptr<sharded::UnitReducer> reducer;  // null until complete()
  std::shared_ptr<parallel::BackwardStep> step;
  std::shared_ptr<parallel::WaitTime> waits = std::make_shared<parallel::WaitTime>();
  std::shared_ptr<ShardGroup> shard_group;
  std::shared_ptr<sharded::Offload> offload;  // null: nothing is offloaded

 private:
  [[nodiscard]] CallOptions call() const {
    return {.tag = "fully_shard", .timeout = options_.timeout};
  }
  [[nodiscard]] const sharded::Unit& unit_of(const sharded::UnitEntry& entry) const {
    return *unsharder->units()[static_cast<std::size_t>(entry.unit)];
  }
  void add_units(const modules::ModuleTensors& tensors);
  void add_unit(const layout::PlannedUnit& planned, const std::vector<NamedParameter>& parameters,
                const sharded::UnitSettings& settings);

  ShardOptions options_;
  std::vector<sharded::UnitEntry> places_;  // of the module's parameters, each once, in its order
  std::map<const void*, sharded::UnitEntry> by_tensor_;
  std::shared_ptr<sharded::BufferPool> pool_;
  std::unique_ptr<Joinable> joinable_;
  std::unique_ptr<parallel::GradientHooks> hooks_;
};

}  // namespace lockstep
