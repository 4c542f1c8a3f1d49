// What handles do alike whose parameters are the module's own, all of each on every rank.
#pragma once

#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/handle.h>

#include <vector>

namespace lockstep::parallel {

[[nodiscard]] std::vector<NamedPart> whole_parts(const std::vector<NamedParameter>& parameters);

// Handle::zero_grad(): gradients that someone else holds keep their values.
void zero_gradients(const std::vector<NamedParameter>& parameters, bool set_to_none);

// Adds bytes of parameters and their gradients.
void count_memory(const at::Tensor& parameter, HandleMemory& memory);

}  // namespace lockstep::parallel
