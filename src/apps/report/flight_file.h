// A flight record that a rank has written (src/comm/diagnose/flight_recorder.h has the format).
#pragma once

#include "comm/call/record.h"

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct FlightCall {
  std::uint64_t number = 0;  // among all calls of its rank
  std::size_t group = 0;     // index into FlightFile::groups
  std::string call;          // "all_reduce"
  std::uint64_t sequence = 0;
  std::string op, dtype, tag, counts, where;
  int root = -1;  // root, or the peer of a message
  std::int64_t elements = -1;
  double posted = 0;
  double ended = 0;      // 0: not yet
  std::string progress;  // posting, posted, waiting, done, failed, refused

  [[nodiscard]] bool is_message() const { return call == "send" || call == "recv"; }
  [[nodiscard]] bool is_done() const { return progress == "done"; }
  // Returns true if the rank was blocked in this call.
  [[nodiscard]] bool is_waited_in() const {
    return progress == "waiting" || progress == "failed" || progress == "posting";
  }
};

struct FlightGroup {
  std::string name;
  std::vector<int> members;  // ranks in the world
  std::string failure;
};

struct FlightFile {
  std::string path;
  int rank = 0;
  int size = 0;
  std::string backend, host;
  bool streams = false;  // calls ran on streams of a device
  double written = 0;
  std::vector<FlightGroup> groups;
  std::vector<FlightCall> calls;
};

// Reads a flight record. Throws BadInput with one line that has the path if the file cannot be
// read, is not a regular file, is truncated, is larger than any record, or has another format.
// Texts have the form of escaped(). Time and memory are linear in the file's size, which is
// bounded.
[[nodiscard]] FlightFile read_flight_file(const std::string& path);

// Compares the properties of a call on which two ranks must agree.
[[nodiscard]] bool same_call(const FlightCall& a, const FlightCall& b);
// Returns "all_reduce #417 (average, 3145728 x Float, bucket 2) at trainer.cc:88, made on this
// group".
[[nodiscard]] std::string describe(const FlightCall& call, const GroupNames& group);

}  // namespace lockstep::apps
