// Formulas of LibTorch that need a change for global tensors.
#pragma once

namespace lockstep::global {

// Replaces formulas of LibTorch that create plain tensors beside global ones, for all tensors of
// the process, and attention. Idempotent; thread-safe.
void replace_formulas();

}  // namespace lockstep::global
