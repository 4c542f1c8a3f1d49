#include "parallel/pipeline/pipeline_state.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/fingerprint.h"
#include "comm/init/backends.h"
#include "dispatch/key.h"
#include "dispatch/part.h"
#include "parallel/write_watch.h"

#include <lockstep/comm/device.h>
#include <lockstep/parallel/pipeline/pipeline.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace lockstep {
namespace {

using pipeline::StepKind;

// Maximum kinds of batches whose sizes are cached. When it is exceeded, every rank clears its
// cache.
constexpr std::size_t most_cached = 64;

// Returns the directions of the messages between stages, whose ranks are given.
Directions directions_between(const std::vector<int>& ranks) {
  Directions directions;
  for (std::size_t stage = 1; stage < ranks.size(); ++stage) {
    directions.insert({ranks[stage - 1], ranks[stage]});
    directions.insert({ranks[stage], ranks[stage - 1]});
  }
  return directions;
}

// Returns true if all ranks of the pipeline have refused a batch: the pipeline stays usable.
bool is_refusal(const std::exception& error) {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
         dynamic_cast<const parallel::ComparedMismatch*>(&error) != nullptr;
}

std::shared_ptr<PipelineState> finished(std::shared_ptr<PipelineState> state) {
  state->finish();
  return state;
}

}  // namespace

void PipelineState::finish() {
  check(loss_ != nullptr, "Pipeline: the loss must not be empty");
  aborts(group_);  // other pipelines wait in these groups, too
  for (pipeline::StageSet& set : sets_) {
    is_alone_ = is_alone_ && set.handles.empty();
    set.finish();
    add_child(set.handle);
  }
  aborts(group());
  take_parameters();
  Directions directions = directions_between(ranks_);
  ties_->add_directions(directions);
  connect(group_, directions, options_.timeout);
}

void PipelineState::take_parameters() {
  std::vector<Part> all = CompositeState::named_parameters(), parameters;
  ties_->take_parts(all, group_, options_.timeout);
  std::set<const at::TensorImpl*> had;
  for (Part& part : all)
    if (had.insert(part.tensor.unsafeGetTensorImpl()).second && !ties_->is_elsewhere(part))
      parameters.push_back(std::move(part));
  parameters_.emplace(std::move(parameters), shared_group_);
}

c10::Device PipelineState::device() const {
  for (const auto& [index, run] : runs_)
    for (const at::Tensor& tensor : run.parameters()) return tensor.device();
  return c10::kCPU;
}

// BatchView::mode: it may change from step to step, and with it the messages between stages.
std::uint64_t PipelineState::mode() const {
  std::uint64_t mode = 0;
  const auto add = [&](auto number) {
    mode = combine_fingerprints(mode, static_cast<std::uint64_t>(number));
  };
  for (const auto& [stage, run] : runs_)
    for (const at::Tensor& parameter : run.parameters()) {
      add(parameter.requires_grad() ? 1 : 0);
      add(parameter.scalar_type());
    }
  const c10::DeviceType type = device().type();
  const bool casts =
      at::autocast::is_autocast_available(type) && at::autocast::is_autocast_enabled(type);
  if (casts) add(at::autocast::get_autocast_dtype(type));
  return mode;
}

PipelineState::Result PipelineState::run(StepKind kind, const Tensors& inputs,
                                         const Tensors& targets, std::int64_t fewest_rows) {
  const int first = ranks_.front(), last = ranks_.back();
  const bool is_first = first == group_.rank(), is_last = last == group_.rank();
  Progress now{.part = "the agreement on a batch"};
  std::optional<pipeline::Batch> batch;
  try {
    batch.emplace(group_, kind,
                  pipeline::BatchView{is_first ? &inputs : nullptr,
                                      is_last && kind != StepKind::forward ? &targets : nullptr,
                                      mode(), !requires_gradient_sync(), fewest_rows},
                  schedule_.micro_batches, first, last, options_.timeout);
    now = {};
    return run(kind, *batch, now);
  } catch (const std::exception& error) {
    if (batch || !is_refusal(error)) fail(now, error.what());
    throw;
  } catch (...) {
    fail(now, "an exception that is no std::exception");
    throw;
  }
}

PipelineState::Result PipelineState::run(StepKind kind, const pipeline::Batch& batch,
                                         Progress& now) {
  const bool trains = kind == StepKind::train;
  now.part = "the exchange of tied values";
  ties_->send_values(group_, options_.timeout);
  now.part = "the beginning of a step";
  if (trains && std::exchange(keeps_ties_, false))
    ties_->drop_cleared(
        [this](const at::Tensor& parameter) { return parameters_->is_cleared(parameter); }, group_,
        options_.timeout);
  if (trains) parameters_->take_gradients();
  Result result = execute(kind, batch, now);
  now = {.part = "the exchange of tied gradients"};
  keeps_ties_ = trains ? !requires_gradient_sync() : keeps_ties_;
  if (trains && !keeps_ties_) ties_->send_gradients(group_, options_.timeout);
  now.part = "the end of a step";
  if (trains) parameters_->give_gradients();
  if (kind != StepKind::forward) {
    const auto mode = combine_fingerprints(batch.mode(), static_cast<std::uint64_t>(kind));
    result.loss = on_all_ranks(mode, result.loss);
  }
  return result;
}

PipelineState::Result PipelineState::execute(StepKind kind, const pipeline::Batch& batch,
                                             Progress& now) {
  if (spec_cache_.size() >= most_cached && !spec_cache_.contains(batch.kind())) spec_cache_.clear();
  const bool trains = kind == StepKind::train;
  const bool is_whole = trains && batch.micro_batches() == schedule_.micro_batches;
  plan::Schedule part;
  if (!is_whole)
    part = trains ? plan::first_micro_batches(schedule_, batch.micro_batches())
                  : plan::forward_only(schedule_, batch.micro_batches());
  const plan::Schedule& schedule = is_whole ? schedule_ : part;
  const std::vector<plan::Action> order = is_whole ? order_ : plan::posting_order(schedule);
  const auto& actions = schedule.ranks[static_cast<std::size_t>(group_.rank())];
  pipeline::P2PExchange p2p(group_, order, ranks_, batch, spec_cache_[batch.kind()], device(),
                            options_.timeout);
  pipeline::Execution execution(
      schedule, batch, kind, p2p,
      {runs_, loss_, [this](const plan::Action& action) { before_backward(action); }});
  if (trains) begin_step(actions, /*stays_local=*/!requires_gradient_sync());
  execution.run(actions, now.action);
  end_step();
  if (trains) {
    measured_ = execution.measured(stages());
    waited_ += measured_.seconds - measured_.busy;
  }
  return {execution.loss(), kind == StepKind::forward ? execution.outputs() : Tensors()};
}

// Notifies the other ranks, and drops the state of the step.
void PipelineState::fail(const Progress& now, const char* what) noexcept {
  try {
    const std::string part = now.action ? plan::text_of(*now.action) : now.part;
    abort(formatted("{} of the pipeline failed: {}", part, escaped_line(what, 2000)));
  } catch (...) {
    abort("a pipeline failed");  // no memory for more
  }
  end_step();
  spec_cache_.clear();
  for (auto& [stage, run] : runs_) run.clear();
}

// Returns the loss on every rank. The rank with the last stage broadcasts the loss; in the first
// step of a mode, it also sends the loss's dtype and whether the loss is on a device.
at::Tensor PipelineState::on_all_ranks(std::uint64_t mode, const at::Tensor& loss) {
  const auto known = device_losses_.find(mode);
  if (known != device_losses_.end()) return sent_on_device(known->second, loss);
  at::Tensor told = at::zeros({3}, at::kDouble);
  if (loss.defined()) {
    told[0] = loss.item<double>();
    told[1] = static_cast<double>(loss.scalar_type());
    told[2] = loss.is_cpu() ? 0 : 1;
  }
  group_.all_reduce(told, Op::sum, call("loss of a pipeline")).wait();
  const double* numbers = told.const_data_ptr<double>();
  constexpr auto dtypes = static_cast<double>(at::ScalarType::NumOptions);
  if (!(numbers[1] >= 0 && numbers[1] < dtypes))
    throw Mismatch(formatted("loss of a pipeline: expected a dtype, found {}", numbers[1]));
  const auto dtype = static_cast<at::ScalarType>(static_cast<int>(numbers[1]));
  const bool is_on_device = numbers[2] == 1;
  if (device_losses_.size() >= most_cached) device_losses_.clear();
  if (is_on_device) device_losses_.emplace(mode, dtype);
  return at::full({}, numbers[0],
                  at::TensorOptions(dtype).device(is_on_device ? device() : at::kCPU));
}

// Does not wait for the device.
at::Tensor PipelineState::sent_on_device(at::ScalarType dtype, const at::Tensor& loss) {
  at::Tensor sent;
  if (loss.defined()) {
    check(!loss.is_cpu() && loss.scalar_type() == dtype,
          "loss: expected one of dtype {} on a device, as in earlier steps, found {} on {}",
          c10::toString(dtype), c10::toString(loss.scalar_type()), loss.device().str());
    sent = loss.clone();
  } else {
    sent = at::empty({}, at::TensorOptions(dtype).device(device()));
  }
  group_.broadcast(sent, ranks_.back(), call("loss of a pipeline")).wait();
  return sent;
}

void PipelineState::detach() {
  CompositeState::detach();
  sets_.clear();
  runs_.clear();
}

std::vector<Part> PipelineState::named_parameters() const { return parameters_->parts(); }

void PipelineState::zero_grad(bool set_to_none) {
  CompositeState::zero_grad(set_to_none);
  parameters_->zero_grad(set_to_none);
  ties_->forget_gradients();
}

std::vector<Part> PipelineState::state_parts() {
  std::set<std::string> elsewhere;
  for (const pipeline::StageEntry& entry : entries_)
    if (ranks_[static_cast<std::size_t>(entry.stage)] != group_.rank())
      elsewhere.insert(entry.names.front());
  // A strategy may give several parts of one tensor. A buffer that stages on several ranks have is
  // listed on each of these ranks: a load must write all copies, and a save takes the copy of the
  // lowest rank.
  std::set<std::pair<std::string, std::vector<std::int64_t>>> had;
  std::vector<Part> list;
  for (Part& part : CompositeState::state_parts()) {
    std::vector<std::int64_t> place = part.slice.box.offsets;
    place.insert(place.end(), {part.slice.range.begin, part.slice.range.end});
    const bool is_here = part.kind == PartKind::buffer || !elsewhere.contains(part.name);
    if (!is_here || !had.emplace(part.name, std::move(place)).second) continue;
    // Stages on other ranks may have other names for the tensor.
    part.aliases = entries_[entry_named_.at(part.name)].names;
    std::erase(part.aliases, part.name);
    list.push_back(std::move(part));
  }
  return list;
}

HandleMemory PipelineState::memory() const {
  HandleMemory memory = CompositeState::memory();
  if (!is_alone_) return memory;
  memory.gradients = 0;  // gradients of tied copies are counted by the owner
  for (const Part& part : parameters_->parts())
    if (const at::Tensor& gradient = part.tensor.grad(); gradient.defined())
      memory.gradients += static_cast<std::int64_t>(gradient.nbytes());
  return memory;
}

}  // namespace lockstep

namespace lockstep::pipeline {

OwnParameters::OwnParameters(std::vector<Part> parameters, const std::shared_ptr<Group>& group)
    : parameters_(std::move(parameters)) {
  at::NoGradGuard no_grad;
  if (parameters_.empty())
    parameters_.push_back(
        {.name = "(none)", .tensor = at::empty({0}), .slice = layout::whole_slice(std::array{0L})});
  // One part per shard group of the stages, so that norms combine each group once.
  std::map<const ShardGroup*, std::shared_ptr<ShardGroup>> groups;
  for (const Part& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    check(tensor.is_non_overlapping_and_dense(),
          "pipeline: parameter {}: expected a dense tensor without gaps, found strides [{}]",
          parameter.name, listed(tensor.strides(), ", "));
    auto& over_stages = groups[parameter.shard_group.get()];
    if (!over_stages) over_stages = std::make_shared<ShardGroup>(parameter.shard_group, group);
    Part part = parameter;
    part.tensor = at::Tensor();
    part.shard_group = over_stages;
    part.offset = 0;
    auto alone = std::make_shared<const std::vector<Part>>(1, part);
    part.tensor = dispatch::as_part(dispatch::values_of(tensor.detach()), std::move(alone), 0,
                                    dispatch::key());
    part.tensor.set_requires_grad(tensor.requires_grad());
    parts_.push_back(std::move(part));
  }
  given_.resize(parts_.size(), WeakStorage(c10::intrusive_ptr<c10::StorageImpl>()));
  was_given_.resize(parts_.size());
  given_zeros_.resize(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i)
    watches_.push_back(std::make_shared<dispatch::ZeroWatch>(parts_[i].tensor.numel()));
  give_gradients();
}

namespace {

// Returns null if nothing watches the gradient.
std::shared_ptr<dispatch::ZeroWatch> watch_of(const at::Tensor& gradient) {
  return std::dynamic_pointer_cast<dispatch::ZeroWatch>(
      dispatch::owner_of(*gradient.unsafeGetTensorImpl()));
}

}  // namespace

at::Tensor OwnParameters::as_part(const at::Tensor& values, std::size_t i) const {
  const auto of_handle = watch_of(values);
  return dispatch::as_part_like(dispatch::values_of(values.detach()), parts_[i].tensor,
                                of_handle ? of_handle : watches_[i]);
}

bool OwnParameters::is_cleared(const at::Tensor& parameter) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].tensor.is_same(parameter) || was_given_[i] == 0) continue;
    const at::Tensor& given = parts_[i].tensor.grad();
    if (!given.defined() || !parameter.grad().defined()) return true;
    const auto& [watch, zeros] = given_zeros_[i];
    return watch != nullptr && watch == watch_of(given) && watch->zeros() != zeros;
  }
  return false;
}

bool OwnParameters::is_as_given(const at::Tensor& gradient, std::size_t i) const {
  const auto storage = given_[i].lock();
  if (!gradient.defined()) return storage == nullptr;
  return storage != nullptr && gradient.storage().unsafeGetStorageImpl() == storage.get();
}

void OwnParameters::remember(const at::Tensor& gradient, std::size_t i) {
  given_[i] = gradient.defined() ? WeakStorage(gradient.storage().getWeakStorageImpl())
                                 : WeakStorage(c10::intrusive_ptr<c10::StorageImpl>());
}

void OwnParameters::take_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    check(tensor.numel() == 0 || tensor.const_data_ptr() == parts_[i].tensor.const_data_ptr(),
          "pipeline: parameter {}: expected the memory that it had when the pipeline was made, "
          "found other memory; make the pipeline after to() and set_data()",
          parameters_[i].name);
    const at::Tensor& given = parts_[i].tensor.grad();
    at::Tensor& own = tensor.mutable_grad();
    const bool module_counts = is_as_given(given, i) && !is_as_given(own, i);
    const at::Tensor gradient = module_counts ? own : given;
    own = gradient.defined() ? dispatch::values_of(gradient.detach()) : at::Tensor();
  }
}

void OwnParameters::give_gradients() {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& own = parameters_[i].tensor.mutable_grad();
    at::Tensor& given = parts_[i].tensor.mutable_grad();
    const bool is_there = dispatch::has_gradient(parameters_[i].tensor);
    if (is_there && !dispatch::has_memory(own))
      dispatch::bring(own, "step() of a pipeline", /*writes=*/false);
    given = is_there ? as_part(own, i) : own;
    if (is_there && parameters_[i].shard_group == nullptr) own = given;
    remember(own, i);
    was_given_[i] = given.defined() ? 1 : 0;
    const auto watch = given.defined() ? watch_of(given) : nullptr;
    given_zeros_[i] = {watch, watch ? watch->zeros() : 0};
  }
}

void OwnParameters::zero_grad(bool set_to_none) {
  was_given_.assign(was_given_.size(), 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& given = parts_[i].tensor.mutable_grad();
    at::Tensor& own = parameters_[i].tensor.mutable_grad();
    if (set_to_none) {
      given.reset();
      own.reset();
      remember(given, i);
    } else {
      if (given.defined()) given.zero_();
      if (own.defined() && !own.is_same(given)) own.zero_();
    }
  }
}

}  // namespace lockstep::pipeline

namespace lockstep {

using pipeline::StepKind;

Pipeline::Pipeline(const std::vector<Stage>& stages, const plan::Schedule& schedule, Group group,
                   PipelineLoss loss, Options options)
    : Handle(finished(std::make_shared<PipelineState>(stages, schedule, group, std::move(loss),
                                                      group, options))) {}

PipelineState& Pipeline::own() const { return static_cast<PipelineState&>(*state()); }

at::Tensor Pipeline::step(const Tensors& inputs, const Tensors& targets) {
  return own().run(StepKind::train, inputs, targets).loss;
}

at::Tensor Pipeline::evaluate(const Tensors& inputs, const Tensors& targets) {
  return own().run(StepKind::evaluate, inputs, targets).loss;
}

Tensors Pipeline::forward(const Tensors& inputs) {
  return own().run(StepKind::forward, inputs, {}).outputs;
}

const std::vector<int>& Pipeline::stages() const { return own().stages(); }

Pipeline::Measured Pipeline::measured() const { return own().measured(); }

}  // namespace lockstep
