// Schedules as files: a line for each rank, its actions in their order with commas between them.
//
//   0F0,0F1,0B0,0B1
//   ,1F0,1B0,1F1,1B1
//
// 0F1 is the forward of stage 0 for micro-batch 1; F forward, B backward, I gradient of inputs,
// W gradient of weights. Empty cells say that nothing is done, and are passed over. It is the
// format of torch.distributed.pipelining's compute-only files.
#pragma once

#include <lockstep/plan/schedule.h>

#include <filesystem>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::plan {

// `name` is the file's, for messages. BadInput in one line, "NAME:LINE: ...", with what was
// expected and found: for text that is no action, numbers beyond the limits, and every problem that
// find_problem() finds.
[[nodiscard]] Schedule parse_schedule(std::string_view text, std::string_view name);

// What parse_schedule() reads back as the same schedule, but for its name.
[[nodiscard]] std::string schedule_text(const Schedule& schedule);

// Blocks on the disk. BadInput as above, SystemError when the file cannot be read.
[[nodiscard]] Schedule read_schedule(const std::filesystem::path& path);

}  // namespace lockstep::plan

#pragma GCC visibility pop
