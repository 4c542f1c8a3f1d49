// Which GPU each rank has, for engines that give every rank one of its own.
#pragma once

#include <span>
#include <string>

namespace lockstep::c10d_engine {

// `gpus` names the GPU of each rank, empty where it sees none. BadInput names a rank that has none,
// or two that would share one.
void check_gpus(std::span<const std::string> gpus);

}  // namespace lockstep::c10d_engine
