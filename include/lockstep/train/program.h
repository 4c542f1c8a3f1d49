// A training program of one's own, in one line:
//
//   int main(int count, char** words) {
//     MyTask task;
//     return lockstep::train::run_program(task, count, words);
//   }
//
// It has the command line of `lockstep train` (docs/training.md) with the task's own options in
// place of gpt's: --config, --out, --resume, --ranks N, --shard, --precision, --help and all the
// others. It runs alone, with --ranks, or under any launcher.
#pragma once

#include <lockstep/launch/copies.h>
#include <lockstep/train/task.h>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Takes main()'s arguments; call it first there, and once. Returns the exit code: 0, the run is
// done; 128 + N, signal N ended it and a checkpoint is there; 1, a line on standard error says what
// failed; 2, the same, because of the options. Throws nothing. `start` serves --ranks N; the
// default argument makes the program link it, and not liblockstep.so.
[[nodiscard]] int run_program(Task& task, int count, char** words,
                              launch::StartCopies start = launch::start_copies);

}  // namespace lockstep::train

#pragma GCC visibility pop
