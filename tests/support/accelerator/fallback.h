// The fallback for operations without a kernel for the simulated accelerator: it queues a call of
// the CPU's kernel on the current stream.
#pragma once

namespace lockstep::test::accelerator {

// Registers the fallback for each operation that has both a composite kernel and a CPU kernel.
// LibTorch prefers a composite kernel to a fallback; results would then differ from the CPU in the
// last bits.
void prefer_cpu_kernels();

}  // namespace lockstep::test::accelerator
