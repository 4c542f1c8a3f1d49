#include "support/torch/mpirun_world.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "comm/backends/mpi/library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto start_limit = 60s;
constexpr auto end_limit = 10s;

bool holds_within(std::chrono::milliseconds limit, const std::function<bool()>& condition) {
  const auto deadline = Deadline::after(limit);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// Finds a launcher by its name on Debian, where several can be installed. Returns an empty path if
// the launcher is not installed.
fs::path launcher_of(std::string_view mpi) {
  const char* folders = std::getenv("PATH");
  std::istringstream list(folders != nullptr ? folders : "");
  for (std::string folder; std::getline(list, folder, ':');) {
    auto file = fs::path(folder) / formatted("mpirun.{}", mpi);
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

std::vector<std::string> environment_for_mpirun(bool loses_a_process) {
  std::vector<std::string> result{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                  "OMPI_MCA_rmaps_base_oversubscribe=1",
                                  "OMPI_MCA_hwloc_base_binding_policy=none",
                                  "OMPI_MCA_odls_base_sigkill_timeout=0"};
  // MPICH's transport ends a process that reads the memory of a dead process.
  if (loses_a_process) result.emplace_back("UCX_TLS=^cma");
  for (char** entry = environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

}  // namespace

std::vector<std::string> startable_mpis() {
  std::vector<std::string> result;
  for (const auto& library : mpi::libraries()) {
    if (!launcher_of(library.name).empty()) result.push_back(library.name);
  }
  return result;
}

MpirunWorld::MpirunWorld(const Injection& injection)
    : mpi_(injection.target.mpi),
      loses_a_process_(injection.ends_a_process()),
      size_(loses_a_process_ ? injection.ranks() : most_injected_ranks),
      board_(SharedObject<WorldBoard>::make(folder_ / "board")),
      mpirun_(start()) {
  const bool are_ready = holds_within(start_limit, [this] {
    return std::all_of(board_->members.begin(), board_->members.begin() + size_,
                       [](const auto& member) { return member.process != 0; });
  });
  if (are_ready) return;
  mpirun_.send_to_group(SIGKILL);
  kill_ranks(SIGKILL);
  throw Error(formatted("mpirun.{} did not start {} processes: {}", mpi_, size_, output()));
}

sys::Process MpirunWorld::start() const {
  board_->test_program = ::getpid();
  const auto file = launcher_of(mpi_).string();
  const sys::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const sys::FileDescriptor output(
      ::open((folder_ / "output").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const auto program = fs::read_symlink("/proc/self/exe").parent_path() / "programs/injected_ranks";
  return sys::Process::spawn({.file = file,
                              .arguments = {file, "-n", std::to_string(size_), program.string(),
                                            (folder_ / "board").string()},
                              .environment = environment_for_mpirun(loses_a_process_),
                              .input = nothing.get(),
                              .output = output.get(),
                              .error = output.get(),
                              .own_session = true,
                              .end_with_parent = true});
}

MpirunWorld::~MpirunWorld() {
  kill_ranks(SIGCONT);
  board_->is_over = true;
  if (mpirun_.wait(Deadline::after(end_limit))) return;
  ADD_FAILURE() << "the processes of mpirun." << mpi_ << " did not end: " << output();
  kill_ranks(SIGKILL);
  mpirun_.send_to_group(SIGKILL);
  static_cast<void>(mpirun_.wait(Deadline::after(end_limit)));
}

void MpirunWorld::kill_ranks(int signal) const {
  for (const auto& member : board_->members) {
    if (member.process != 0) ::kill(member.process, signal);
  }
}

bool MpirunWorld::suits(const Injection& injection) const {
  return injection.target.mpi == mpi_ && !is_used_up_ && !loses_a_process_ &&
         !injection.ends_a_process();
}

void MpirunWorld::begin(const Injection& injection, const std::string& place) {
  injection_ = injection;
  board_->misdeed = injection.misdeed;
  board_->seed = injection.seed;
  board_->deadline = injection.deadline;
  board_->place.fill('\0');
  place.copy(board_->place.data(), board_->place.size() - 1);
  new (&board_->injection) InjectionBoard;
  ++board_->number;
}

bool MpirunWorld::has_ended(int rank, std::chrono::milliseconds limit) const {
  const auto& member = board_->members.at(static_cast<std::size_t>(rank));
  const auto has_left = [&] { return member.ended == board_->number; };
  return holds_within(limit, [&] { return has_left() || member.is_dead; }) && has_left();
}

void MpirunWorld::release_victim() {
  board_->injection.is_over = true;
  kill_ranks(SIGCONT);
  // If one process does not return, the whole world is replaced.
  is_used_up_ = !has_ended(injection_.victim(), end_limit);
}

std::string MpirunWorld::output() const {
  std::ifstream file(folder_ / "output");
  return {std::istreambuf_iterator<char>(file), {}};
}

MpirunWorld& MpirunWorlds::suiting(const Injection& injection) {
  if (world_ && world_->suits(injection)) return *world_;
  end();
  world_ = std::make_unique<MpirunWorld>(injection);
  return *world_;
}

}  // namespace lockstep::test
