// lockstep-plan: `lockstep plan pipeline` shows what a pipeline schedule will do before it runs.
#include "base/format.h"
#include "base/text.h"
#include "sys/files.h"
#include "sys/program.h"

#include <lockstep/plan/schedule.h>
#include <lockstep/plan/simulation.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep;

constexpr const char* about_pipeline =
    "Simulates a schedule and draws it: a row for each rank, F a forward, B a backward, I and W a\n"
    "backward in two parts (gradients of the inputs, of the weights), each with its micro-batch. "
    "A\n"
    "file has a line for each rank, such as 0F0,0F1,0B0,0B1 (stage, action, micro-batch).\n";

struct Chosen {
  std::string schedule;
  plan::ScheduleShape shape{.stages = 0, .micro_batches = 0};
  plan::PipelineTimes times;
  std::string svg, csv;
};

CommandOptions::Take times_into(plan::PipelineTimes& times) {
  return [&times](const std::string& text) {
    std::vector<double> numbers;
    const auto one = each_of([&](const std::string& part) {
      const auto number = parse_number(part);
      if (number && *number >= 0 && *number <= 1e12) numbers.push_back(*number);
    });
    one(text);
    if (numbers.size() != 5 || std::ranges::count(text, ',') != 4)
      throw BadInput(formatted("expected five numbers F,B,I,W,C from 0 to 1e12, found '{}'", text));
    times.stages = {
        {.forward = numbers[0], .backward = numbers[1], .input = numbers[2], .weight = numbers[3]}};
    times.communication = numbers[4];
  };
}

void declare(CommandOptions& options, Chosen& chosen) {
  const std::vector<std::string> names(plan::schedule_names().begin(),
                                       plan::schedule_names().end());
  options.add({"schedule", "NAME|FILE", join(names) + ", or a CSV file", ""},
              text_into(chosen.schedule));
  options.add({"stages", "N", "parts of the model, over all ranks"},
              number_into(chosen.shape.stages, 1, plan::most_stages));
  options.add({"chunks", "N", "stages of one rank", "1; 2 where the schedule needs them"},
              number_into(chosen.shape.chunks, 1, plan::most_stages));
  options.add({"micro-batches", "N", "micro-batches of one step"},
              number_into(chosen.shape.micro_batches, 1, plan::most_micro_batches));
  options.add({"times", "F,B,I,W,C",
               "how long an action of a stage takes, and a message to another rank", "1,2,1,1,0"},
              times_into(chosen.times));
  options.add({"svg", "FILE", "also draw the schedule into this file"}, text_into(chosen.svg));
  options.add({"csv", "FILE", "also write the schedule into this file"}, text_into(chosen.csv));
}

bool is_name(const std::string& text) {
  return std::ranges::find(plan::schedule_names(), text) != plan::schedule_names().end();
}

bool may_be_file(const std::string& text) {
  std::error_code ignored;
  return text.find_first_of("./") != std::string::npos || std::filesystem::exists(text, ignored);
}

plan::Schedule schedule_of(const Chosen& chosen) {
  if (chosen.schedule.empty()) throw UsageError("--schedule is missing: give a name or a CSV file");
  const plan::ScheduleShape& shape = chosen.shape;
  if (!is_name(chosen.schedule) && may_be_file(chosen.schedule)) {
    for (const auto& [option, given] :
         {std::pair("--stages", shape.stages), std::pair("--chunks", shape.chunks),
          std::pair("--micro-batches", shape.micro_batches)})
      if (given != 0)
        throw UsageError(
            formatted("{} {} cannot be given with the file {}, which has this number itself",
                      option, given, chosen.schedule));
    return plan::read_schedule(chosen.schedule);
  }
  try {
    if (is_name(chosen.schedule)) {
      if (shape.stages == 0)
        throw UsageError("--stages is missing: give the number of parts of the model");
      if (shape.micro_batches == 0)
        throw UsageError("--micro-batches is missing: give the number of micro-batches in a step");
    }
    return plan::make_schedule(chosen.schedule, shape);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

std::string table_of(const plan::Simulation& simulation) {
  std::string table = formatted("{:>6}{:>12}{:>12}{:>12}{:>12}{:>18}\n", "rank", "begins", "ends",
                                "busy", "waits", "peak activations");
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const plan::RankSimulation& found = simulation.ranks[rank];
    table += formatted("{:>6}{:>12.6g}{:>12.6g}{:>12.6g}{:>12.6g}{:>18}\n", rank, found.begin,
                       found.end, found.busy, std::max(found.idle(), 0.0), found.peak_activations);
  }
  return table;
}

std::string report_of(const plan::Schedule& schedule, const plan::PipelineTimes& times,
                      const plan::Simulation& simulation) {
  const plan::StageTimes& stage = times.stages.front();
  const auto longest = &simulation.longest() - simulation.ranks.data();
  return formatted("{}: {} on {}, {}\n", schedule.name, counted(schedule.stages, "stage"),
                   counted(schedule.rank_count(), "rank"),
                   counted(schedule.micro_batches, "micro-batch", "es")) +
         formatted("times: F {:g}, B {:g}, I {:g}, W {:g}, communication {:g}\n\n", stage.forward,
                   stage.backward, stage.input, stage.weight, times.communication) +
         text_picture(schedule, times, simulation) + "\n" + table_of(simulation) +
         formatted(
             "\nbubble {:.1f} % of the time of rank {}, from its first action to its last; a step "
             "takes {:g}\n",
             100 * std::max(simulation.bubble(), 0.0), longest, simulation.total()) +
         formatted("peak activations {}: forwards of one stage whose backward is still to come\n",
                   simulation.peak_activations());
}

// `words` are the arguments after "plan pipeline". Returns the exit code of the process.
int plan_pipeline(const std::vector<std::string>& words) {
  Chosen chosen;
  CommandOptions options("lockstep plan pipeline", "[OPTIONS]", about_pipeline);
  declare(options, chosen);
  if (const auto code = sys::answer(options.read(words), options)) return *code;
  const plan::Schedule schedule = schedule_of(chosen);
  const plan::Simulation simulation = simulate(schedule, chosen.times);
  if (!chosen.csv.empty()) sys::AtomicFile::write(chosen.csv, schedule_text(schedule));
  if (!chosen.svg.empty())
    sys::AtomicFile::write(chosen.svg, svg_picture(schedule, chosen.times, simulation));
  sys::write_out(report_of(schedule, chosen.times, simulation));
  return 0;
}

constexpr const char* about =
    "Computes what a way of training will take, before anything runs.\n"
    "\n"
    "  pipeline     A schedule of a pipeline: when each rank does what, and how long it waits.\n";

int run(const std::vector<std::string>& given) {
  CommandOptions options("lockstep plan", "COMMAND [OPTIONS]", about,
                         CommandOptions::Words::begin_a_program);
  if (const auto code = sys::answer(options.read(given), options)) return *code;
  const std::vector<std::string>& words = options.words();
  const std::vector<std::string_view> known{"pipeline"};
  if (words.empty()) throw UsageError("name a command: pipeline");
  if (words.front() != known.front())
    throw UsageError(unknown_name("command", words.front(), known));
  return sys::run_program("lockstep plan pipeline", [&] {
    return plan_pipeline({words.begin() + 1, words.end()});
  });
}

}  // namespace

int main(int count, char** arguments) {
  return sys::run_program("lockstep plan", [&] { return run({arguments + 1, arguments + count}); });
}
