#include <lockstep/parallel/handle.h>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "module/tensors.h"
#include "parallel/handle_state.h"
#include "parallel/state_dict.h"

#include <lockstep/optim/clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <exception>
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

std::vector<Part> Handle::parts_to_load() const { return state()->state_parts(); }

LoadScope Handle::loading() { return LoadScope(state()); }

HandleMemory Handle::memory() const { return state()->memory(); }

std::shared_ptr<optim::StateMemory> Handle::state_memory() const { return state()->state_memory(); }

double Handle::seconds_waited() const { return state()->seconds_waited(); }

StepTiming Handle::timing() const { return state()->timing(); }

namespace {

// A group that is dead already, or has this rank alone, needs nothing.
void abort_all(const std::vector<Group>& groups, std::string_view reason) noexcept {
  for (Group group : groups) {
    try {
      if (group.size() > 1) group.abort(reason);
    } catch (...) {
      // It is dead then.
    }
  }
}

}  // namespace

void HandleState::abort(std::string_view reason) const noexcept { abort_all(*groups_, reason); }

std::function<void(std::string_view)> HandleState::abort_of(const Handle& handle) {
  return [weak = std::weak_ptr(of(handle).groups_)](std::string_view reason) {
    if (const auto groups = weak.lock()) abort_all(*groups, reason);
  };
}

void HandleState::aborts(const Group& group) { groups_->push_back(group); }

void HandleState::aborts(const Mesh& mesh) {
  aborts(mesh.group());
  for (const MeshAxis& axis : mesh.axes()) aborts(mesh[axis.name]);
}

void HandleState::aborts(const HandleState& other) {
  groups_->insert(groups_->end(), other.groups_->begin(), other.groups_->end());
}

Joinable& Handle::joinable() { return state()->joinable(); }

Joinable& HandleState::joinable() {
  throw InvalidArgument(
      "Join: expected a handle of DistributedDataParallel or fully_shard(), found one of another "
      "strategy");
}

const Group& Handle::group() const { return state()->group(); }

std::optional<Mesh> Handle::mesh() const { return state()->mesh(); }

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

}  // namespace lockstep::parallel
