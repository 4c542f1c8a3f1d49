// Your own training program, in one line:
//
//   int main(int count, char** words) {
//     MyTask task;
//     return lockstep::train::run_program(task, count, words);
//   }
//
// The program has the command line of `lockstep train` (docs/training.md), with the task's own
// options in place of those of gpt: --config, --out, --resume, --ranks N, --shard, --precision,
// --help and all the others. It runs alone, with --ranks, or under any launcher.
#pragma once

#include <lockstep/launch/copies.h>
#include <lockstep/train/task.h>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Runs the program with main()'s arguments. Call it once, first in main(). Returns the exit code.
// 0: the run is complete. 128 + N: signal N ended the run, and a checkpoint was saved. 1: the run
// failed, and a line on standard error says why. 2: the options are invalid, and a line on standard
// error says why. Throws nothing. `start` serves --ranks N; its default argument makes the program,
// and not liblockstep.so, link the library that starts copies.
[[nodiscard]] int run_program(Task& task, int count, char** words,
                              launch::StartCopies start = launch::start_copies);

}  // namespace lockstep::train

#pragma GCC visibility pop
