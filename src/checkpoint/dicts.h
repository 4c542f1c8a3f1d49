// LibTorch's dict with values of any type, as in state_dicts.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace lockstep::checkpoint {

using Dict = c10::impl::GenericDict;

[[nodiscard]] inline Dict empty_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }

}  // namespace lockstep::checkpoint
