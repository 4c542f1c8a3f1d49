// How this process's malloc treats large blocks.
#pragma once

namespace lockstep::sys {

// Freed blocks stay with the process. glibc otherwise gives blocks of many megabytes back to the
// system, and a training step that frees and allocates the same gradients and activations pays for
// fresh pages each time: a third of the step for a model of wide linear layers. What is kept is at
// most what was once in use at the same time. A user's own MALLOC_* or GLIBC_TUNABLES setting is
// left alone. Any thread; what was allocated before is not touched.
void keep_freed_memory();

}  // namespace lockstep::sys
