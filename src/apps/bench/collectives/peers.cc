#include "apps/bench/collectives/peers.h"

#include "apps/bench/python.h"
#include "base/command_options.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/nearest.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// Peers of other makers, then our own engines as peers of the one that is measured.
constexpr std::array<std::string_view, 6> known{"gloo",  "mpi",           "openmpi",
                                                "mpich", "lockstep-gloo", "lockstep-mpi"};

// The MPI that a peer is, or is started by; empty for the others.
std::string mpi_of(std::string_view name) {
  if (name == "mpi" || name == "lockstep-mpi") return "mpi";
  return name == "openmpi" || name == "mpich" ? std::string(name) : "";
}

RankCommand our_command(const std::string& name, const std::string& engine, int ranks) {
  return {.name = name,
          .program = fs::read_symlink("/proc/self/exe"),
          .arguments = {"collectives-rank"},
          .ranks = ranks,
          .variables = {{"LOCKSTEP_BACKEND", engine}}};
}

}  // namespace

Peers::Peers(const CollectivesOptions& options) {
  for (const std::string& name : options.peers) {
    if (name == "none" || std::ranges::count(names_, name) != 0) continue;
    if (std::ranges::find(known, name) == known.end())
      throw UsageError("--peers: " + unknown_name("peer", name, known));
    std::string missing = find(name, options);
    if (missing.empty())
      names_.push_back(name);
    else
      print_to(stderr, "left out: {}: {}\n", name, missing);
  }
}

std::string Peers::find(const std::string& name, const CollectivesOptions& options) {
  if (auto mpi = mpi_of(name); !mpi.empty()) {
    auto tools = MpiTools::find(mpi);
    if (!tools)
      return formatted("no such MPI is on the PATH (Debian: apt-get install {})",
                       mpi == "mpich" ? "mpich" : "openmpi-bin libopenmpi-dev");
    if (name == mpi) tools->compile(peer_file("mpi_collectives.c"), folder_.path() / name);
    mpi_.emplace(name, *tools);
  }
  if (name != "gloo") return {};
  try {
    python_ = find_python(options.python);
  } catch (const BadInput& error) {
    if (!options.python.empty()) throw;
    return error.what();
  }
  return {};
}

RankProcesses Peers::start_ranks(const std::string& name, int ranks) const {
  if (name == "lockstep-gloo") return RankProcesses::start_each(our_command(name, "gloo", ranks));
  if (name == "gloo")
    return RankProcesses::start_each(
        {.name = name,
         .program = python_,
         .arguments = {"-W", "ignore", peer_file("collectives.py"), "--serve"},
         .ranks = ranks});
  RankCommand command{
      .name = name, .program = folder_.path() / name, .arguments = {}, .ranks = ranks};
  if (name == "lockstep-mpi") {
    command = our_command(name, "mpi", ranks);
    command.arguments.emplace_back("--pipes");
  }
  return mpi_.at(name).start(command, folder_.path());
}

Contenders Peers::start(int ranks) {
  Contenders contenders;
  contenders.push_back(std::make_unique<Contender>(
      "shm", std::vector{Memory::arena, Memory::ordinary, Memory::node_shared},
      RankProcesses::start_each(our_command("shm", "shm", ranks))));
  for (const std::string& name : names_)
    contenders.push_back(
        std::make_unique<Contender>(name, std::vector{Memory::ordinary}, start_ranks(name, ranks)));
  contenders.front()->wait_until_ready();
  std::erase_if(contenders, [&](const std::unique_ptr<Contender>& contender) {
    return contender != contenders.front() && !is_ready(*contender);
  });
  return contenders;
}

bool Peers::is_ready(Contender& peer) {
  try {
    peer.wait_until_ready();
    return true;
  } catch (const std::exception& error) {
    print_to(stderr, "left out: {}: {}\n", peer.name(), error.what());
    std::erase(names_, peer.name());
    return false;
  }
}

}  // namespace lockstep::apps
