#include "parallel/sharded/sharded_state.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "layout/flat_layout.h"
#include "module/checks.h"
#include "parallel/bucket.h"
#include "parallel/sharded/checks.h"
#include "parallel/state_dict.h"
#include "parallel/step_joinable.h"
#include "sys/heap.h"

#include <lockstep/dispatch/deferral.h>
#include <lockstep/dispatch/part.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::int64_t broadcast_bytes = std::int64_t{25} << 20;

sharded::UnitSettings settings_of(const ShardOptions& options) {
  return {.level = options.level,
          .storage = options.storage,
          .reduce_in_step = options.reduce_in_step,
          .compute_dtype = options.compute_dtype,
          .reduce_dtype = options.reduce_dtype,
          .reshard_after_forward = options.reshard_after_forward,
          .timeout = options.timeout,
          .key = dispatch::key()};
}

}  // namespace

ShardedState::ShardedState(sharded::Groups the_groups, const ShardOptions& options)
    : groups(std::make_shared<sharded::Groups>(std::move(the_groups))),
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
  if (groups->mesh) aborts(*groups->mesh);
  if (!options.offload.empty() || options.offload_to_host)
    offload = std::make_shared<sharded::Offload>(options.offload);
}

void ShardedState::complete(std::shared_ptr<torch::nn::Module> the_module) {
  module = std::move(the_module);
  modules::ModuleTensors tensors = modules::tensors_of(*module, options_.ignored);
  modules::check_same_lines(groups->whole, sharded::describe(*module, tensors, options_), call());
  add_units(tensors);
  for (const auto& [name, tensor, aliases] : tensors.parameters)
    places_.push_back(by_tensor_.at(tensor.unsafeGetTensorImpl()));
  reducer = std::make_shared<sharded::UnitReducer>(*groups, *unsharder, pool_, deferred, options_);
  std::vector<at::Tensor> buffers;
  if (options_.broadcast_buffers) buffers = tensors.buffer_tensors();
  step = std::make_shared<parallel::BackwardStep>(
      groups->whole, reducer,
      modules::ModuleWatch(*module, options_.ignored, "fully_shard() was called"),
      std::move(buffers),
      parallel::StepOptions{.strategy = "fully_shard()",
                            .find_unused_parameters = options_.find_unused_parameters,
                            .timeout = options_.timeout,
                            .waits = waits,
                            .abort = [this](std::string_view reason) {
                              // If another rank has ended a group, that is the reason.
                              const std::string end = unsharder->end();
                              abort(end.empty() ? reason : std::string_view(end));
                            }});
  joinable_ = std::make_unique<parallel::WholeStepJoinable>(
      "fully_shard()", groups->whole, *step,
      [this](std::function<void()> call) { unsharder->on_forward(std::move(call)); });
  hooks_ = std::make_unique<parallel::GradientHooks>(
      step->hooked(), [step = step.get()](int i) { step->on_gradient(i); },
      [step = step.get()] { return step->has_averages(); });
  sys::return_freed_memory();  // the whole parameters'
}

// Checks first; then rank 0's values are divided.
void ShardedState::add_units(const modules::ModuleTensors& tensors) {
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
    sharded::UnitSettings settings = settings_of(sharded::options_of(planned, options_));
    settings.waits = waits;
    settings.shard_group = shard_group;
    bool on_host = parameters[static_cast<std::size_t>(planned.items.front())].tensor.is_cpu();
    if (offload && (offload->is_in_files() || !on_host)) settings.offload = offload;
    add_unit(planned, parameters, settings);
  }
}

void ShardedState::add_unit(const layout::PlannedUnit& planned,
                            const std::vector<NamedParameter>& parameters,
                            const sharded::UnitSettings& settings) {
  std::vector<NamedParameter> members;
  std::vector<at::Tensor> tensors;
  for (int i : planned.items) {
    members.push_back(parameters[static_cast<std::size_t>(i)]);
    tensors.push_back(members.back().tensor);
  }
  parallel::give_values(groups->whole, parallel::deferred_among(tensors), broadcast_bytes, call());
  unsharder->add(planned.name, std::move(members), pool_, settings);
  sharded::UnitEntry entry{.unit = static_cast<int>(unsharder->units().size()) - 1};
  for (const at::Tensor& tensor : tensors) {
    by_tensor_[tensor.unsafeGetTensorImpl()] = entry;
    ++entry.number;
  }
}

void ShardedState::detach() {
  hooks_.reset();
  if (reducer) reducer->end();
  for (const auto& unit : unsharder->units())
    unit->abandon(
        "this parameter's values were divided over the ranks by fully_shard(), and its handle is "
        "gone; call unshard() before the handle goes");
}

std::vector<Part> ShardedState::named_parameters() const {
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

void ShardedState::zero_grad(bool set_to_none) {
  step->zero_grad();
  reducer->clear_gradients(set_to_none);
}

void ShardedState::check_gradients(std::string_view operation) const {
  check(reducer->has_gradients(),
        "{}: there are no gradients: no backward() outside no_sync() since the last zero_grad()",
        operation);
}

std::vector<Part> ShardedState::state_parts() {
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

void ShardedState::begin_load() {
  step->check_module();
  unsharder->before_write();
}

void ShardedState::end_load(bool) {
  for (const auto& unit : unsharder->units()) unit->parts_written();
  unsharder->invalidate();
}

HandleMemory ShardedState::memory() const {
  sharded::BufferPool::Bytes turns = pool_->bytes();
  HandleMemory memory{.gradients = reducer ? reducer->kept_bytes() : 0,
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

std::shared_ptr<optim::StateMemory> ShardedState::state_memory() const {
  return offload && offload->is_in_files() ? offload : nullptr;
}

void ShardedState::reset_peak_memory() { pool_->reset_peak(); }

void ShardedState::unshard() {
  step->check_module();
  unsharder->invalidate();
  hooks_.reset();
  reducer->end();
  for (const auto& unit : unsharder->units()) unit->hand_back();
}

}  // namespace lockstep
