#include "comm/api/group_state.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include "comm/backend/flat.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace lockstep {
namespace {

void check_timeout(Duration timeout, std::string_view name) {
  if (timeout <= Duration::zero()) {
    throw InvalidArgument(formatted("group {}: a timeout must be longer than nothing; found {} ns",
                                    name, timeout.count()));
  }
}

// Any collective of one rank leaves its input as its output.
void perform_alone(const Call& call) {
  if (!call.input.defined() || !call.output.defined() || call.input.is_same(call.output)) return;
  if (call.input.const_data_ptr() == call.output.const_data_ptr()) return;
  at::NoGradGuard no_grad;
  flat(call.output).copy_(flat(call.input));
}

}  // namespace

GroupState::GroupState(std::shared_ptr<Backend> backend, std::string name, Duration timeout)
    : backend_(backend && backend->size() > 1 ? std::move(backend) : nullptr),
      name_(std::move(name)),
      timeout_(timeout) {
  check_timeout(timeout, name_);
}

Duration GroupState::timeout() const {
  std::lock_guard lock(mutex_);
  return timeout_;
}

void GroupState::set_timeout(Duration timeout) {
  check_timeout(timeout, name_);
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

std::uint64_t GroupState::next_part() {
  if (has_backend()) backend_->check_process();
  std::lock_guard lock(mutex_);
  return ++parts_;
}

Work GroupState::post(Call call, const CallOptions& options, std::source_location where) {
  if (options.timeout) check_timeout(*options.timeout, name_);
  if (has_backend()) backend_->check_process();  // a child's copy of mutex_ may be locked for ever
  std::lock_guard lock(mutex_);
  call.tag = options.tag;
  call.timeout = options.timeout.value_or(timeout_);
  call.where = where;
  if (has_backend()) return {backend_, backend_->post(call)};
  alone_failure_.refuse_if_any(name_of(call.collective), name_);
  perform_alone(call);
  return {};
}

// Holds the group's posts back until all ranks have come: it is one of them.
at::Tensor GroupState::empty_node_shared(at::IntArrayRef sizes, const at::TensorOptions& options,
                                         std::source_location where) {
  backend_->check_process();
  std::lock_guard lock(mutex_);
  return backend_->empty_node_shared(sizes, options, timeout_, where);
}

void GroupState::abort(std::string_view reason) {
  if (has_backend()) return backend()->abort(reason);
  std::lock_guard lock(mutex_);
  alone_failure_.set(
      std::make_exception_ptr(Aborted(formatted("group {}: ended: {}", name_, reason))));
}

}  // namespace lockstep
