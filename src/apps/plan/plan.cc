// lockstep-plan: `lockstep plan pipeline` shows what a pipeline schedule will do before it runs.
#include "apps/plan/pipeline.h"
#include "base/text.h"
#include "sys/program.h"

#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep::apps;
using lockstep::CommandOptions, lockstep::UsageError;

constexpr const char* about =
    "Computes what a way of training will take, before anything runs.\n"
    "\n"
    "  pipeline     A schedule of a pipeline: when each rank does what, and how long it waits.\n";

int plan(const std::vector<std::string>& given) {
  CommandOptions options("lockstep plan", "COMMAND [OPTIONS]", about,
                         CommandOptions::Words::begin_a_program);
  const auto request = options.read(given);
  if (const auto code = lockstep::sys::answer(request, options)) return *code;
  const std::vector<std::string>& words = options.words();
  const std::vector<std::string_view> known{"pipeline"};
  if (words.empty()) throw UsageError("name a command: pipeline");
  if (words.front() != known.front())
    throw UsageError(lockstep::unknown_name("command", words.front(), known));
  return lockstep::sys::run_program("lockstep plan pipeline", [&] {
    return plan_pipeline({words.begin() + 1, words.end()});
  });
}

}  // namespace

int main(int count, char** arguments) {
  return lockstep::sys::run_program("lockstep plan", [&] {
    return plan({arguments + 1, arguments + count});
  });
}
