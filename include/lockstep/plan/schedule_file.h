// Schedules as files: one line per rank with its ordered actions, separated by commas.
//
//   0F0,0F1,0B0,0B1
//   ,1F0,1B0,1F1,1B1
//
// 0F1 is the forward of stage 0 for micro-batch 1; F is forward, B backward, I the gradient of
// inputs, W the gradient of weights. Empty cells mean idle time and are skipped. The format is that
// of the compute-only files of torch.distributed.pipelining.
#pragma once

#include <lockstep/plan/schedule.h>

#include <filesystem>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::plan {

// Parses a schedule. `name` is the file name, for messages. Throws BadInput with a one-line
// message, "NAME:LINE: expected X, found Y", for text that is not an action, numbers beyond the
// limits, and every problem that find_problem() detects.
[[nodiscard]] Schedule parse_schedule(std::string_view text, std::string_view name);

// Returns text that parse_schedule() converts back to the same schedule, except for its name.
[[nodiscard]] std::string schedule_text(const Schedule& schedule);

// Reads and parses a file. Blocks on disk I/O. Throws BadInput as parse_schedule() does, and
// SystemError if the file cannot be read.
[[nodiscard]] Schedule read_schedule(const std::filesystem::path& path);

}  // namespace lockstep::plan

#pragma GCC visibility pop
