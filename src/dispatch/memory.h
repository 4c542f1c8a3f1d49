// The interceptor that brings memory: it pins the lazy storages (dispatch/lazy_storage.h) among an
// operation's arguments while it runs.
#pragma once

#include "dispatch/call.h"

namespace lockstep::dispatch {

// An operation that only makes a view runs without memory; owners are told of it. What an owner
// throws, the operation throws.
void bring_memory(Call& call);

}  // namespace lockstep::dispatch
