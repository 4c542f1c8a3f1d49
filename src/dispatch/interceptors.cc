#include "dispatch/call.h"
#include "dispatch/carrier.h"
#include "dispatch/deferral/recorder.h"
#include "dispatch/memory.h"
#include "dispatch/parts/check_parts.h"
#include "dispatch/recompute/record_block.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <iterator>

namespace lockstep::dispatch {
namespace {

// The outermost first. A thread that records operations has no use for what follows, unless the
// recorder proceeds; blocks are recorded as the program runs them, not as carriers do; what a
// carrier runs comes again with the tensors that it runs on; memory is brought last, for operations
// that really run.
constexpr Interceptor interceptors[] = {&record_operation, &record_block, &hand_to_carrier,
                                        &check_parts, &bring_memory};

Call::Kind kind_of(const c10::FunctionSchema& schema) {
  // Some backends answer set_data()'s question themselves.
  if (schema.name() == "aten::_has_compatible_shallow_copy_type") return Call::Kind::query;
  if (schema.returns().empty()) return Call::Kind::compute;
  const c10::Argument& result = schema.returns().front();
  bool is_view = result.alias_info() != nullptr && !is_written(result);
  return is_view ? Call::Kind::view : Call::Kind::compute;
}

}  // namespace

Call::Call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack& stack)
    : operation_(operation), keys_(keys), stack_(stack), kind_(kind_of(operation.schema())) {}

void Call::proceed() {
  if (next_ < std::size(interceptors)) return interceptors[next_++](*this);
  // Some operations return a view or a copy, as it comes out: what copies inside comes here again.
  if (kind_ != Kind::compute) return redispatch();
  const c10::impl::ExcludeDispatchKeyGuard without_our_keys(
      c10::DispatchKeySet({our_key, factory_key}));
  redispatch();
}

void Call::redispatch() {
  // The highest key is the one of our keys by which the call came.
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, keys_.highestPriorityTypeId());
  operation_.redispatchBoxed(keys_ & below, &stack_);
}

void intercept(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
               torch::jit::Stack* stack) {
  Call call(operation, keys, *stack);
  call.proceed();
}

}  // namespace lockstep::dispatch
