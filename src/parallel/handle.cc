#include <lockstep/parallel/handle.h>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/bucket.h"
#include "parallel/handle_state.h"
#include "parallel/state_dict.h"

#include <lockstep/optim/clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>

namespace lockstep {
namespace {

void check_sizes(const at::Tensor& whole, const Part& part) {
  check_input(whole.sizes() == at::IntArrayRef(part.slice.sizes),
              "{}: expected a tensor of shape [{}], found [{}]", part.name,
              listed(part.slice.sizes, ", "), listed(whole.sizes(), ", "));
}

}  // namespace

NoSync::NoSync(std::shared_ptr<HandleState> state) : state_(std::move(state)) {
  state_->begin_no_sync();
}

NoSync::~NoSync() {
  if (state_) state_->end_no_sync();
}

LoadScope::LoadScope(std::shared_ptr<HandleState> state)
    : state_(std::move(state)), exceptions_(std::uncaught_exceptions()) {
  state_->begin_load();
  try {
    parts_ = state_->state_parts();
  } catch (...) {
    state_->end_load(/*complete=*/false);
    throw;
  }
}

LoadScope::~LoadScope() noexcept(false) {
  const bool complete = std::uncaught_exceptions() == exceptions_;
  try {
    state_->end_load(complete);
  } catch (...) {
    if (complete) throw;
    log::warning("after a load that failed: {}",
                 parallel::exception_text(std::current_exception()));
  }
}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this == &other) return *this;
  if (state_) state_->detach();
  state_ = std::move(other.state_);
  return *this;
}

Handle::~Handle() {
  if (state_) state_->detach();
}

const std::shared_ptr<HandleState>& Handle::state() const {
  check(state_ != nullptr, "handle: it is not attached to a module");
  return state_;
}

std::vector<at::Tensor> Handle::parameters() const {
  std::vector<at::Tensor> tensors;
  for (Part& part : named_parameters()) tensors.push_back(std::move(part.tensor));
  return tensors;
}

std::vector<Part> Handle::named_parameters() const { return state()->named_parameters(); }

void Handle::zero_grad(bool set_to_none) { state()->zero_grad(set_to_none); }

NoSync Handle::no_sync() { return NoSync(state()); }

double Handle::clip_grad_norm(double max_norm, double norm_type) {
  check(norm_type > 0, "clip_grad_norm: the norm's order must be positive, found {}", norm_type);
  state()->check_gradients("clip_grad_norm");
  return optim::clip_grad_norm(parameters(), max_norm, norm_type);
}

void Handle::clip_grad_value(double largest) {
  check(largest >= 0, "clip_grad_value: the largest value must be at least 0, found {}", largest);
  state()->check_gradients("clip_grad_value");
  optim::clip_grad_value(parameters(), largest);
}

std::map<std::string, at::Tensor> Handle::state_dict() const {
  return parallel::get_model_state_dict(*state());
}

void Handle::load_state_dict(const std::map<std::string, at::Tensor>& tensors) {
  parallel::set_model_state_dict(state(), tensors);
}

std::vector<Part> Handle::state_parts() const {
  state()->check_one_model();
  return state()->state_parts();
}

std::vector<Part> Handle::mutable_state_parts() const { return state()->state_parts(); }

LoadScope Handle::loading() { return LoadScope(state()); }

HandleMemory Handle::memory() const { return state()->memory(); }

std::shared_ptr<optim::StateMemory> Handle::state_memory() const { return state()->state_memory(); }

double Handle::seconds_waited() const { return state()->seconds_waited(); }

StepTiming Handle::timing() const { return state()->timing(); }

// A dead group, or a group with only this rank, needs no action.
void HandleState::abort_all(const Ends& ends, std::string_view reason) noexcept {
  for (Group group : ends.groups) {
    try {
      if (group.size() > 1) group.abort(reason);
    } catch (...) {
      // The group is dead in this case.
    }
  }
  if (const auto outer = ends.outer.lock()) abort_all(*outer, reason);
}

void HandleState::abort(std::string_view reason) const noexcept { abort_all(*ends_, reason); }

std::function<void(std::string_view)> HandleState::abort_of(const Handle& handle) {
  return [weak = std::weak_ptr(of(handle).ends_)](std::string_view reason) {
    if (const auto ends = weak.lock()) abort_all(*ends, reason);
  };
}

void HandleState::aborts(const Group& group) { ends_->groups.push_back(group); }

void HandleState::aborts(const Mesh& mesh) {
  aborts(mesh.group());
  for (const MeshAxis& axis : mesh.axes()) aborts(mesh[axis.name]);
}

void HandleState::aborts(const HandleState& other) {
  std::ranges::copy(other.ends_->groups, std::back_inserter(ends_->groups));
}

Joinable& Handle::joinable() { return state()->joinable(); }

Joinable& HandleState::joinable() {
  throw InvalidArgument(
      "Join: expected a handle of DistributedDataParallel or fully_shard(), found one of another "
      "strategy");
}

const Group& Handle::group() const { return state()->group(); }

std::optional<Mesh> Handle::mesh() const { return state()->ranks().mesh(); }

at::Tensor cut_part(const at::Tensor& whole, const Part& part) {
  at::NoGradGuard no_grad;
  check_sizes(whole, part);
  at::Tensor values = at::empty({part.slice.numel()}, whole.options());
  for (const layout::Box& box : layout::boxes_of(part.slice))
    modules::box_in_part(values, part.slice, box).copy_(modules::box_in_whole(whole, box));
  return values;
}

void paste_part(const at::Tensor& values, const Part& part, const at::Tensor& whole) {
  at::NoGradGuard no_grad;
  check_sizes(whole, part);
  check_input(values.numel() == part.slice.numel(),
              "{}: expected a number of elements of {}, found {}", part.name, part.slice.numel(),
              values.numel());
  at::Tensor flat = values.reshape({-1});
  for (const layout::Box& box : layout::boxes_of(part.slice))
    modules::box_in_whole(whole, box).copy_(modules::box_in_part(flat, part.slice, box));
}

}  // namespace lockstep

namespace lockstep::parallel {

std::string exception_text(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const c10::Error& error) {
    return first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return first_line(error.what());
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void zero_gradient(const at::Tensor& parameter, bool set_to_none) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (set_to_none) {
    gradient.reset();
  } else {
    gradient = gradient.detach();
    gradient.zero_();
  }
}

HandleMemory memory_of(const std::vector<Part>& parameters) {
  HandleMemory memory;
  for (const Part& part : parameters) {
    const auto bytes = static_cast<std::int64_t>(part.tensor.nbytes());
    (part.slice.is_whole() ? memory.whole : memory.shards) += bytes;
    if (const at::Tensor& gradient = part.tensor.grad(); gradient.defined())
      memory.gradients += static_cast<std::int64_t>(gradient.nbytes());
  }
  return memory;
}

WholeModuleState::WholeModuleState(const Ranks& ranks, std::vector<Part> trained, ListParts list,
                                   Holds holds)
    : HandleState(ranks, holds),
      group_(ranks.group()),
      trained_(std::move(trained)),
      list_(std::move(list)) {
  aborts(group_);
}

WholeModuleState::WholeModuleState(const torch::nn::Module& module, const Ranks& ranks,
                                   std::vector<std::string> ignored)
    : WholeModuleState(ranks, whole_parts(modules::tensors_of(module, ignored).parameters),
                       [&module, ignored] { return whole_state_parts(module, ignored); }) {}

void WholeModuleState::zero_grad(bool set_to_none) {
  for (const Part& part : trained_) zero_gradient(part.tensor, set_to_none);
}

HandleMemory WholeModuleState::memory() const { return memory_of(trained_); }

}  // namespace lockstep::parallel

namespace lockstep::data_parallel {
namespace {

constexpr std::int64_t bytes_at_once = std::int64_t{25} << 20;

}  // namespace

LocalModelState::LocalModelState(const ModuleRef& module, const Ranks& ranks,
                                 const std::string& strategy, std::vector<std::string> options,
                                 std::optional<Duration> timeout)
    : WholeModuleState(*module.shared(strategy), ranks), module_(module.shared(strategy)) {
  CallOptions call{.tag = strategy, .timeout = timeout};
  modules::ModuleTensors tensors = modules::tensors_of(*module_);
  std::vector<std::string> lines = std::move(options);
  for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
  modules::check_same_lines(group_, lines, call);
  modules::check_ordinary(tensors, strategy);
  parallel::check_not_sharded(tensors.parameters, strategy);
  parameters_ = tensors.parameters;
  std::vector<at::Tensor> state = tensors.buffer_tensors();
  for (const NamedParameter& parameter : parameters_) state.push_back(parameter.tensor);
  parallel::broadcast_now(group_, state, bytes_at_once, call);
}

}  // namespace lockstep::data_parallel

namespace lockstep::parallel {
namespace {

// Combines memories for the state of one optimizer: state is allocated in the first one, and advice
// goes to each.
class StateMemories final : public optim::StateMemory {
 public:
  explicit StateMemories(std::vector<std::shared_ptr<optim::StateMemory>> memories)
      : memories_(std::move(memories)) {}

  [[nodiscard]] at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override {
    return memories_.front()->zeros(count, dtype);
  }
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override {
    return std::ranges::any_of(memories_, [&](const auto& one) { return one->holds(tensor); });
  }
  void will_use(const at::Tensor& tensor) noexcept override {
    for (const auto& one : memories_) one->will_use(tensor);
  }
  void has_used(const at::Tensor& tensor) noexcept override {
    for (const auto& one : memories_) one->has_used(tensor);
  }

 private:
  std::vector<std::shared_ptr<optim::StateMemory>> memories_;
};

}  // namespace

void CompositeState::add_child(const Handle& child) {
  children_.push_back(&of(child));
  aborts(of(child));
}

std::vector<Part> CompositeState::named_parameters() const {
  std::vector<Part> all;
  for (const HandleState* child : children_)
    std::ranges::move(child->named_parameters(), std::back_inserter(all));
  return all;
}

std::vector<Part> CompositeState::state_parts() {
  std::vector<Part> all;
  for (HandleState* child : children_)
    std::ranges::move(child->state_parts(), std::back_inserter(all));
  return all;
}

void CompositeState::zero_grad(bool set_to_none) {
  for (HandleState* child : children_) child->zero_grad(set_to_none);
}

void CompositeState::set_requires_gradient_sync(bool on) {
  for (HandleState* child : children_) on ? child->end_no_sync() : child->begin_no_sync();
}

// If begin_load() of one child throws, end the loads that have begun.
void CompositeState::begin_load() {
  std::size_t begun = 0;
  try {
    for (; begun < children_.size(); ++begun) children_[begun]->begin_load();
  } catch (...) {
    for (std::size_t i = 0; i < begun; ++i) children_[i]->end_load(/*complete=*/false);
    throw;
  }
}

// End all loads, then rethrow the first exception.
void CompositeState::end_load(bool complete) {
  std::exception_ptr failure;
  for (HandleState* child : children_) {
    try {
      child->end_load(complete);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void CompositeState::check_one_model() const {
  for (const HandleState* child : children_) child->check_one_model();
}

bool CompositeState::optimizers_may_differ() const {
  return std::ranges::any_of(children_, &HandleState::optimizers_may_differ);
}

HandleMemory CompositeState::memory() const {
  HandleMemory all;
  for (const HandleState* child : children_) all += child->memory();
  return all;
}

std::shared_ptr<optim::StateMemory> CompositeState::state_memory() const {
  std::vector<std::shared_ptr<optim::StateMemory>> all;
  for (const HandleState* child : children_)
    if (auto one = child->state_memory()) all.push_back(std::move(one));
  if (all.size() > 1) return std::make_shared<StateMemories>(std::move(all));
  return all.empty() ? nullptr : std::move(all.front());
}

double CompositeState::seconds_waited() const {
  double all = 0;
  for (const HandleState* child : children_) all += child->seconds_waited();
  return all;
}

namespace {

// SeparateParts: the handle of a module whose tensors are divided among several handles, such as a
// stage whose experts are trained apart from its other tensors.
class SeparateParts final : public CompositeState {
 public:
  // `handles`: the group() of the first one has all ranks; each uses the names of its tensors in
  // `module`.
  SeparateParts(const torch::nn::Module& module, std::vector<Handle> handles)
      : CompositeState(of(handles.front()).ranks()), handles_(std::move(handles)) {
    for (const NamedParameter& entry : modules::state_entries(module)) {
      std::vector<std::string>& names = names_.emplace_back(modules::names_of(entry));
      for (const std::string& name : names) place_.emplace(name, names_.size() - 1);
    }
    for (const Handle& handle : handles_) {
      add_child(handle);
      adopt(of(handle));
    }
  }

  void detach() override {
    CompositeState::detach();
    while (!handles_.empty()) handles_.pop_back();
  }

  // Returns the parts in the order of the module, with all names.
  [[nodiscard]] std::vector<Part> named_parameters() const override {
    return in_order(CompositeState::named_parameters());
  }

  [[nodiscard]] std::vector<Part> state_parts() override {
    return in_order(CompositeState::state_parts());
  }
  [[nodiscard]] StepTiming timing() const override { return handles_.front().timing(); }

 private:
  [[nodiscard]] std::vector<Part> in_order(std::vector<Part> parts) const {
    for (Part& part : parts) {
      const std::vector<std::string>& names = names_[place_.at(part.name)];
      part.name = names.front();
      part.aliases.assign(names.begin() + 1, names.end());
    }
    std::ranges::stable_sort(parts, {}, [this](const Part& part) { return place_.at(part.name); });
    return parts;
  }

  std::vector<Handle> handles_;
  std::vector<std::vector<std::string>> names_;  // of each tensor, in the module's order
  std::map<std::string, std::size_t> place_;     // in names_, by each name
};

}  // namespace

Handle joined(const torch::nn::Module& module, std::vector<Handle> handles) {
  if (handles.size() == 1) return std::move(handles.front());
  return HandleState::handle_of(std::make_shared<SeparateParts>(module, std::move(handles)));
}

}  // namespace lockstep::parallel
