// lockstep-train: `lockstep train gpt|mnist|mlp`.
#include "base/environment.h"
#include "base/escaped.h"
#include "train/configuration.h"
#include "train/program.h"
#include "train/tasks/known.h"

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace lockstep;

constexpr const char* command = "lockstep train";

// Returns the name under which a shell finds this program: the dispatcher's name if PATH leads to
// it.
std::string program_name() {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path dispatcher = fs::read_symlink("/proc/self/exe", none).parent_path() / "lockstep";
  std::istringstream folders(environment::text("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::equivalent(fs::path(folder) / "lockstep", dispatcher, none)) return command;
  return shell_word(dispatcher.string()) + " train";
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::unique_ptr<train::Task>> tasks = train::known_tasks();
  std::vector<train::Task*> known;
  for (const std::unique_ptr<train::Task>& task : tasks) known.push_back(task.get());
  return train::run_program(command, program_name(), known, {arguments + 1, arguments + count});
}
