// Formulas of gradients that make plain tensors of their own.
#pragma once

namespace lockstep::global {

// Replaces these, for all tensors of the process, by the same ones that make tensors like the
// gradient: global ones where it is global. Any thread, more than once.
void replace_formulas();

}  // namespace lockstep::global
