// The flight record: a rank's latest calls on every group that came from its init(), each with its
// source location and the times of its post and of the end of its wait. When a group fails, each
// rank writes its record as one file to the folder that LOCKSTEP_FLIGHT names (`lockstep run` sets
// it). `lockstep report hang FILE...` reads the files of several ranks and shows which rank waits
// for which. docs/errors.md shows a report; src/comm/diagnose/flight_recorder.h has the format.
//
// Recording costs nanoseconds per call, a fixed 128 KiB per process, and no system call.
#pragma once

#include <lockstep/comm/group.h>

#include <string>

#pragma GCC visibility push(default)

namespace lockstep {

// Writes this rank's current record atomically to `folder`/flight-rank-N.json and returns that
// path. An empty folder means the one that LOCKSTEP_FLIGHT names. Not collective. Thread-safe, also
// while other threads wait in operations. The group stays usable. Throws InvalidArgument if no
// folder is named or nothing is recorded, as in groups of one rank and of threads; SystemError if
// the disk is full or the folder is not writable.
std::string write_flight_record(const Group& group, const std::string& folder = {});

}  // namespace lockstep

#pragma GCC visibility pop
