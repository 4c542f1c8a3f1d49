// run_program() (lockstep/train/program.h) for a program of several tasks.
#pragma once

#include <lockstep/train/task.h>

#include <string>
#include <vector>

namespace lockstep::train {

// `name` is what is said before complaints and help: "lockstep train"; `shell_name` is how a shell
// finds the program, for the command that resumes a run.
[[nodiscard]] int run_program(const std::string& name, const std::string& shell_name,
                              const std::vector<Task*>& tasks,
                              const std::vector<std::string>& words);

}  // namespace lockstep::train
