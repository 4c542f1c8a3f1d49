// Lockstep has state that a process must have once: the arenas of its ranks, LibTorch's CPU
// allocator, a dispatch key. Two copies of the code would each have their own.
#pragma once

namespace lockstep {

// Throws Error when this process has another copy of Lockstep that has called this: liblockstep.so
// beside the static libraries, or two libraries that each contain the static ones. Thread-safe.
void check_only_copy();

}  // namespace lockstep
