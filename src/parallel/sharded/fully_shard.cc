#include <lockstep/parallel/sharded/fully_shard.h>

#include "base/check.h"
#include "base/scope_exit.h"
#include "dispatch/key.h"
#include "layout/flat_layout.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_step.h"
#include "parallel/bucket.h"
#include "parallel/handle_state.h"
#include "parallel/sharded/checks.h"
#include "parallel/sharded/unit.h"
#include "parallel/sharded/unit_reducer.h"
#include "parallel/sharded/unsharder.h"
#include "parallel/state_dict.h"
#include "sys/heap.h"

#include <lockstep/dispatch/deferred_init.h>
#include <lockstep/dispatch/part.h>
#include <lockstep/parallel/join.h>
#include <lockstep/parallel/sharded/deferred.h>

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

constexpr std::int64_t broadcast_bytes = std::int64_t{25} << 20;

}  // namespace

// The state that a handle, its scopes and its hooks share.
class ShardedState final : public HandleState, public Joinable {
 public:
  // Collective. Checks the options.
  ShardedState(const Ranks& ranks, const ShardOptions& options)
      : HandleState(ranks),
        groups(std::make_shared<sharded::Groups>(sharded::groups_on(ranks))),
        deferred(options.reduce_in_step ? std::make_shared<sharded::LazyGradients>() : nullptr),
        unsharder(std::make_unique<sharded::Unsharder>(options.level, options.prefetch,
                                                       groups->gather, groups->reduce,
                                                       options.timeout, deferred)),
        shard_group(std::make_shared<ShardGroup>(std::shared_ptr<Group>(groups, &groups->reduce),
                                                 options.timeout)),
        options_(options),
        pool_(std::make_shared<sharded::BufferPool>(groups->gather)) {
    sharded::check_options(options);
    for (const Group& group : {groups->whole, groups->gather, groups->reduce, groups->replicas})
      aborts(group);
    if (ranks.mesh()) aborts(*ranks.mesh());
    if (!options.offload.empty() || options.offload_to_host)
      offload = std::make_shared<sharded::Offload>(options.offload);
  }

  // Collective; call once: shards the module's parameters and starts the reduction of gradients.
  void complete(std::shared_ptr<torch::nn::Module> the_module) {
    module = std::move(the_module);
    modules::ModuleTensors tensors = modules::tensors_of(*module, options_.ignored);
    modules::check_same_lines(groups->whole, sharded::describe(*module, tensors, options_), call());
    add_units(tensors);
    for (const auto& [name, tensor, aliases] : tensors.parameters)
      places_.push_back(by_tensor_.at(tensor.unsafeGetTensorImpl()));
    reducer =
        std::make_shared<sharded::UnitReducer>(*groups, *unsharder, pool_, deferred, options_);
    std::vector<at::Tensor> buffers;
    if (options_.broadcast_buffers) buffers = tensors.buffer_tensors();
    step = std::make_shared<parallel::BackwardStep>(
        groups->whole, reducer,
        modules::ModuleWatch(*module, options_.ignored, "fully_shard() was called",
                             options_.broadcast_buffers),
        std::move(buffers),
        parallel::StepOptions{.strategy = "fully_shard()",
                              .find_unused_parameters = options_.find_unused_parameters,
                              .timeout = options_.timeout,
                              .waits = waits,
                              .abort =
                                  [this](std::string_view reason) {
                                    // If another rank has ended a group, report that reason.
                                    const std::string end = unsharder->end();
                                    abort(end.empty() ? reason : std::string_view(end));
                                  },
                              .ends_with_failure = [] { return true; }});
    sys::return_freed_memory();  // the whole parameters'
  }

  // Removes the hooks. Using a released parameter afterwards is an error that says why it has no
  // values.
  void detach() override {
    step->unhook();
    reducer->end();
    for (const auto& unit : unsharder->units())
      unit->abandon(
          "this parameter's values were divided over the ranks by fully_shard(), and its handle is "
          "gone; call unshard() before the handle goes");
  }

  [[nodiscard]] std::vector<Part> named_parameters() const override {
    std::vector<Part> list;
    for (const sharded::UnitEntry& place : places_) {
      const sharded::Unit& unit = unit_of(place);
      const auto i = static_cast<std::size_t>(place.number);
      Part& part = list.emplace_back(unit.part_of(place.number));
      part.name = unit.parameters()[i].name;
      part.tensor = unit.slices()[i];
      part.aliases = unit.parameters()[i].aliases;
    }
    return list;
  }

  void zero_grad(bool set_to_none) override {
    step->zero_grad();
    reducer->clear_gradients(set_to_none);
  }

  void check_gradients(std::string_view operation) const override {
    check(reducer->has_gradients(),
          "{}: there are no gradients: no backward() outside no_sync() since the last zero_grad()",
          operation);
  }

  void set_requires_gradient_sync(bool on) override { on ? step->resume() : step->pause(); }

  [[nodiscard]] std::vector<Part> state_parts() override {
    step->check_module();
    const parallel::PartKinds kinds(*module, options_.ignored);
    std::vector<Part> list;
    for (const NamedParameter& entry : modules::state_entries(*module)) {
      auto found = by_tensor_.find(entry.tensor.unsafeGetTensorImpl());
      if (found != by_tensor_.end()) {
        const sharded::UnitEntry& place = found->second;
        Part& part = list.emplace_back(unit_of(place).part_of(place.number));
        part.name = entry.name;
        part.tensor = unit_of(place).part(place.number);
        part.aliases = entry.aliases;
      } else if (!entry.tensor.is_nested()) {
        list.push_back(kinds.whole_part(entry));
      }
    }
    return list;
  }

  void begin_load() override {
    step->check_module();
    unsharder->before_write();
  }

  void end_load(bool) override {
    for (const auto& unit : unsharder->units()) unit->parts_written();
    unsharder->invalidate();
  }

  [[nodiscard]] HandleMemory memory() const override {
    sharded::BufferPool::Bytes turns = pool_->bytes();
    HandleMemory memory{.gradients = reducer->kept_bytes(),
                        .in_flight = turns.taken,
                        .peak_in_flight = turns.peak,
                        .pooled = turns.free,
                        .offloaded = offload ? offload->bytes() : 0};
    for (const auto& unit : unsharder->units()) {
      memory.shards += unit->shard_bytes();
      memory.whole += unit->whole_bytes();
    }
    return memory;
  }

  [[nodiscard]] std::shared_ptr<optim::StateMemory> state_memory() const override {
    return offload && offload->is_in_files() ? offload : nullptr;
  }

  [[nodiscard]] double seconds_waited() const override { return waits->seconds(); }
  [[nodiscard]] Joinable& joinable() override { return *this; }
  [[nodiscard]] StepTiming timing() const override { return step->clock().total(); }

  // Communicates in forward, too: a whole forward and backward is one round.
  [[nodiscard]] std::string join_name() const override { return "fully_shard()"; }
  [[nodiscard]] const Group& join_group() const override { return groups->whole; }
  void set_join(std::shared_ptr<JoinLink> link) override {
    check(!link || link->options().empty_step, "Join: {} needs JoinOptions::empty_step",
          join_name());
    step->set_join(link, nullptr);
    link_ = link;
    unsharder->on_forward(!link ? std::function<void()>() : [this, link] {
      (void)link->announce(*this, step->is_paused() ? accumulates : averages);
    });
  }
  void end_inputs() override { step->clear_averages(); }
  [[nodiscard]] bool shadow(int round, const JoinRound& /*ranks*/) override {
    if (round == accumulates) step->pause();
    ScopeExit over([&] {
      if (round == accumulates) step->resume();
    });
    std::shared_ptr<JoinLink>(link_)->run_empty_step();
    return round == averages;
  }

  void unshard() {
    step->check_module();
    unsharder->invalidate();
    step->unhook();
    reducer->end();
    for (const auto& unit : unsharder->units()) unit->hand_back();
  }

  void reset_peak_memory() { pool_->reset_peak(); }

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
  enum Round { averages, accumulates };

  [[nodiscard]] CallOptions call() const {
    return {.tag = "fully_shard", .timeout = options_.timeout};
  }

  [[nodiscard]] const sharded::Unit& unit_of(const sharded::UnitEntry& entry) const {
    return *unsharder->units()[static_cast<std::size_t>(entry.unit)];
  }

  // Check first, then shard rank 0's values.
  void add_units(const modules::ModuleTensors& tensors) {
    const std::vector<NamedParameter>& parameters = tensors.parameters;
    sharded::check_not_divided(parameters);
    modules::check_ordinary(tensors, "fully_shard");
    modules::check_alone(tensors, "fully_shard");
    sharded::check_storage(*groups, parameters, options_);
    std::vector<layout::PlannedUnit> plan = sharded::plan_of(parameters, options_.units);
    sharded::check_memory(groups->whole,
                          sharded::bytes_needed(parameters, plan, groups->gather.size(), options_),
                          call());
    if (offload && offload->is_in_files())
      sharded::check_room(*offload, groups->whole, parameters, groups->gather.size(), call());
    std::vector<at::Tensor> state;
    for (const auto& parameter : parameters)
      if (!dispatch::is_deferred(parameter.tensor)) state.push_back(parameter.tensor);
    for (const auto& buffer : tensors.buffers) {
      parallel::make_ordinary(buffer.tensor);
      state.push_back(buffer.tensor);
    }
    parallel::broadcast_now(groups->whole, state, broadcast_bytes, call());
    for (const layout::PlannedUnit& planned : plan) {
      sharded::UnitSettings settings{.options = sharded::options_of(planned, options_),
                                     .key = dispatch::key(),
                                     .offload = nullptr,
                                     .waits = waits,
                                     .shard_group = shard_group};
      bool on_host = parameters[static_cast<std::size_t>(planned.items.front())].tensor.is_cpu();
      if (offload && (offload->is_in_files() || !on_host)) settings.offload = offload;
      add_unit(planned, parameters, settings);
    }
  }

  void add_unit(const layout::PlannedUnit& planned, const std::vector<NamedParameter>& parameters,
                const sharded::UnitSettings& settings) {
    std::vector<NamedParameter> members;
    std::vector<at::Tensor> tensors;
    for (int i : planned.items) {
      members.push_back(parameters[static_cast<std::size_t>(i)]);
      tensors.push_back(members.back().tensor);
    }
    parallel::give_values(groups->whole, tensors, broadcast_bytes, call());
    unsharder->add(planned.name, std::move(members), pool_, settings);
    sharded::UnitEntry entry{.unit = static_cast<int>(unsharder->units().size()) - 1};
    for (const at::Tensor& tensor : tensors) {
      by_tensor_[tensor.unsafeGetTensorImpl()] = entry;
      ++entry.number;
    }
  }

  ShardOptions options_;
  std::vector<sharded::UnitEntry> places_;  // of the module's parameters, each once, in its order
  std::map<const void*, sharded::UnitEntry> by_tensor_;
  std::shared_ptr<sharded::BufferPool> pool_;
  std::shared_ptr<JoinLink> link_;
};

ShardedModule fully_shard(const ModuleRef& module, const Ranks& ranks,
                          const ShardOptions& options) {
  std::shared_ptr<torch::nn::Module> whole = module.shared("fully_shard");
  c10::InferenceMode off(false);
  auto state = std::make_shared<ShardedState>(ranks, options);
  state->complete(std::move(whole));
  return ShardedModule(std::move(state));
}

Unsharded::Unsharded(std::shared_ptr<ShardedState> state) : state_(std::move(state)) {
  state_->unsharder->hold_all();
}

Unsharded::~Unsharded() {
  if (state_) state_->unsharder->release_all();
}

ShardedModule::ShardedModule(std::shared_ptr<ShardedState> state) : Handle(std::move(state)) {}

std::shared_ptr<ShardedState> ShardedModule::sharded() const {
  auto sharded = std::dynamic_pointer_cast<ShardedState>(state());
  check(sharded != nullptr,
        "ShardedModule: expected a handle of fully_shard(), found one of another strategy");
  return sharded;
}

Unsharded ShardedModule::unsharded() {
  sharded()->step->check_module();
  return Unsharded(sharded());
}

void ShardedModule::unshard() { sharded()->unshard(); }
void ShardedModule::reset_peak_memory() { sharded()->reset_peak_memory(); }
void ShardedModule::free_buffers() { sharded()->reducer->free_buffers(); }

std::vector<std::string> ShardedModule::units() const {
  std::vector<std::string> names;
  for (const auto& unit : sharded()->unsharder->units()) names.push_back(unit->name());
  return names;
}

void move_to(torch::nn::Module& module, c10::Device device) {
  const c10::InferenceMode off(false);
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  dispatch::move_to(tensors, device);
}

void make_values(torch::nn::Module& module) {
  c10::InferenceMode off(false);
  for (const at::Tensor& parameter : module.parameters()) parallel::make_ordinary(parameter);
  for (const at::Tensor& buffer : module.buffers()) parallel::make_ordinary(buffer);
}

}  // namespace lockstep
