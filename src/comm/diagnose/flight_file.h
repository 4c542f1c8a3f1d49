// The flight record as JSON, read by `lockstep report hang` (src/apps/report).
//
//   {"lockstep_flight_record": 1, "rank": 2, "size": 4, "engine": "shm", "host": "a", "pid": 71,
//    "written": 1732204862.125, "calls_ever": 5120,
//    "groups": [{"name": "world", "members": [0, 1, 2, 3],
//                "failure": "...", "failed": 1732204862.1}],
//    "calls": [{"number": 4097, "group": 0, "call": "all_reduce", "sequence": 417, "op": "sum",
//               "dtype": "float32", "elements": 3145728, "bytes": 12582912, "tag": "bucket 2",
//               "posted": 1732204852.0, "ended": 1732204852.1, "progress": "done",
//               "where": "trainer.cc:88"}]}
//
// Times are seconds since 1970. Some members are optional: `root` for rooted operations, `peer` for
// messages, `op` for reductions, `dtype`, `elements` and `bytes` for calls with a tensor, `counts`
// (a hash) for uneven sizes, `ended` once the rank has waited for the call. `progress` is posting
// (the post has not returned), posted (the rank went on), waiting, done, failed or refused. Calls
// are in the order of their posts.
#pragma once

#include "comm/diagnose/flight_recorder.h"

#include <span>
#include <string>

namespace lockstep::diagnose {

[[nodiscard]] std::string to_json(const FlightHeader& header, std::span<const RecordedGroup> groups,
                                  std::span<const FlightEntry> entries, std::uint64_t calls_ever,
                                  const sys::TimestampScale& scale);

}  // namespace lockstep::diagnose
