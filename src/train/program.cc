#include <lockstep/train/program.h>

#include "base/check.h"
#include "elastic/round_loop.h"
#include "sys/program.h"
#include "train/command_line.h"
#include "train/option_table.h"
#include "train/option_values.h"
#include "train/ranks.h"
#include "train/run_folder.h"
#include "train/task_programs.h"

#include <lockstep/train/trainer.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

// 128 + N, as a shell says it.
constexpr int by_signal = 128;

// An elastic run begins with as many of its ranks as make whole copies of the model.
void check_start(const Options& options, const Task& task, int ranks) {
  if (options.elastic) {
    const int of_a_model = ranks_of_a_model(options);
    check_input(ranks >= of_a_model, "--mesh {}: expected at least {} ranks for one copy, found {}",
                mesh_text(options.mesh), of_a_model, ranks);
    ranks = ranks / of_a_model * of_a_model;
  }
  check_run(options, task, ranks);
}

// A folder that holds another run is refused before anything is started.
void check_folder(Task& task, const Options& options) {
  const Configuration configuration(task, options);
  RunFolder(configuration).check_start();
}

// Words that are wrong are so after each restart.
CommandLine line_of(const std::string& name, const std::vector<Task*>& tasks,
                    const std::vector<std::string>& words) {
  try {
    return parse_command_line(name, tasks, words);
  } catch (const BadInput& error) {
    say_final_failure(error.what());
    throw;
  }
}

int be_a_rank(Task& task, const Options& options, Group world) {
  int signal = train(task, options, std::move(world)).signal;
  return signal == 0 ? 0 : by_signal + signal;
}

int be_elastic_rank(Task& task, const Options& options,
                    const std::function<void(const Group&)>& begins) {
  const std::optional<Report> report = train_elastically(task, options, begins);
  return !report || report->signal == 0 ? 0 : by_signal + report->signal;
}

}  // namespace

int run_program(const std::string& name, const std::string& shell_name,
                const std::vector<Task*>& tasks, const std::vector<std::string>& words) {
  return sys::run_program(name, [&] {
    CommandLine line = line_of(name, tasks, words);
    if (!line.help.empty()) {
      print_to(stdout, "{}", line.help);
      return 0;
    }
    Options& options = line.options;
    options.command = shell_name + " " + options.command;
    return run_ranks(
        {.command = name,
         .words = words,
         .ranks = options.ranks,
         .usual_ranks = usual_ranks(options),
         .flight_folder = options.out,
         .grace = options.grace,
         .check = [&](int ranks) { check_start(options, *line.task, ranks); },
         .check_files = [&] { check_folder(*line.task, options); },
         .body = [&](Group world) { return be_a_rank(*line.task, options, std::move(world)); },
         .is_elastic = options.elastic,
         .elastic_body =
             [&](const auto& begins) { return be_elastic_rank(*line.task, options, begins); }});
  });
}

int run_program(Task& task, int count, char** words) {
  const std::string program = count > 0 ? words[0] : task.name();
  std::vector<std::string> rest;
  for (int i = 1; i < count; ++i) rest.emplace_back(words[i]);
  return run_program(program, shell_word(program), {&task}, rest);
}

}  // namespace lockstep::train
