// Every operation that the simulated accelerator has no kernel for: queued on the current stream
// as a call of the CPU's kernel.
#pragma once

namespace lockstep::test::accelerator {

// A composite kernel wins over a fallback. Registers the fallback itself for operations that have
// both a composite kernel and one of the CPU's: they would otherwise be composed of others and
// differ from the CPU in the last bits.
void prefer_cpu_kernels();

}  // namespace lockstep::test::accelerator
