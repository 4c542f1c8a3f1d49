// Lockstep has state that must be unique per process: the arenas of its ranks, LibTorch's CPU
// allocator, a dispatch key. Two copies of the code would each have their own.
#pragma once

namespace lockstep {

// Throws Error if another copy of Lockstep in this process has called this function: liblockstep.so
// beside the static libraries, or two libraries that each contain the static ones. Thread-safe.
void check_only_copy();

}  // namespace lockstep
