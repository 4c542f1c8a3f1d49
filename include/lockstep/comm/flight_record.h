// The flight record: the latest calls of a rank on every group that came from its init(), each with
// its place in the source and the times of its post and of the end of its wait. When a group dies,
// each rank writes its record as one file into the folder that LOCKSTEP_FLIGHT names (`lockstep
// run` names one). `lockstep report hang FILE...` reads the files of several ranks and says which
// rank waits for which. docs/errors.md shows one; src/comm/diagnose/flight_file.h has the format.
//
// Recording costs nanoseconds a call, a fixed 128 KiB a process, and no system call.
#pragma once

#include <lockstep/comm/group.h>

#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// Writes the record of this rank as it is now, as `folder`/flight-rank-N.json, whole or not at all,
// and returns that path. An empty folder means LOCKSTEP_FLIGHT's. Local: no peer takes part; any
// thread, also while others wait in operations. The group lives on. InvalidArgument: no folder is
// named, or nothing is recorded, as in groups of one rank and of threads. SystemError: the disk is
// full, or the folder cannot be written.
std::string write_flight_record(const Group& group, const std::string& folder = {});

}  // namespace lockstep

#pragma GCC visibility pop
