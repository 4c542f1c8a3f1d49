// The program's own tensors beside a checkpoint, which has no place for them:
// OUT/own-00000100.safetensors, written before OUT/step-00000100.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>

#include <cstdint>
#include <filesystem>

namespace lockstep {

// Collective: rank 0 writes, and removes those of steps that no checkpoint is there of any more.
// Nothing where there are no tensors. CommonFailure.
void save_own_tensors(Group& group, const std::filesystem::path& out, std::int64_t step,
                      const checkpoint::NamedTensors& tensors, std::int64_t keep);

// Collective: into these, what was committed or saved with the state in `folder`. CommonFailure
// where that has others.
void read_own_tensors(Group& group, const std::filesystem::path& folder,
                      const checkpoint::NamedTensors& tensors);

}  // namespace lockstep
