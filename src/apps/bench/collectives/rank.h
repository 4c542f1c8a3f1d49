// Lockstep's rank of `lockstep bench collectives`: the twin of bench/peers/collectives.py --serve
// and of bench/peers/mpi_collectives.c.
#pragma once

#include <string>

namespace lockstep::apps {

// Joins its peers by the environment, says `{"ready": true, "library": ...}`, and then answers each
// line (row.h) by `{"ns": [...]}`, the nanoseconds of each counted call on this rank, until its
// input ends. `pipes` is empty, or the folder of RankProcesses::start_by_launcher.
int serve_collectives(const std::string& pipes);

}  // namespace lockstep::apps
