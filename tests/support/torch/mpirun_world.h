// Processes that mpirun started (comm/programs/injected_ranks.cc), which serve as ranks of several
// injections in turn.
#pragma once

#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/injected_rank.h"
#include "support/torch/shared_object.h"
#include "sys/process.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

// Returns the MPI implementations for which this build has a plug-in and this host an mpirun.
[[nodiscard]] std::vector<std::string> startable_mpis();

// Shared memory for communication between the test program and the processes of a world.
struct WorldBoard {
  std::atomic<int> test_program{0};  // its pid
  std::atomic<bool> is_over{false};
  // The fields below `number` are written before `number`, which counts the injections.
  std::atomic<std::int64_t> number{0};
  Misdeed misdeed{};
  std::uint64_t seed = 0;
  Duration deadline{};
  std::array<char, 100> place{};
  InjectionBoard injection;

  struct Member {
    std::atomic<int> process{0};  // pid; 0: not ready yet
    std::atomic<bool> is_dead{false};
    std::atomic<std::int64_t> ended{0};  // the last injection that it has left
  };
  std::array<Member, most_injected_ranks> members{};
};

class MpirunWorld {
 public:
  // Starts a world that suits the injection. Blocks until all its processes are ready; throws Error
  // with mpirun's output if they do not start.
  explicit MpirunWorld(const Injection& injection);
  // Blocks until mpirun has ended. Adds a test failure if a process must be killed for that.
  ~MpirunWorld();
  MpirunWorld(const MpirunWorld&) = delete;
  MpirunWorld& operator=(const MpirunWorld&) = delete;

  [[nodiscard]] bool suits(const Injection& injection) const;
  // Starts an injection with the store at `place`.
  void begin(const Injection& injection, const std::string& place);
  [[nodiscard]] const InjectionBoard& board() const { return board_->injection; }
  // Blocks until that rank has left the injection. Returns false if the rank died or has not left
  // within `limit`.
  [[nodiscard]] bool has_ended(int rank, std::chrono::milliseconds limit) const;
  // Lets a stopped or looping victim continue, and waits until it has left.
  void release_victim();
  // Returns the output so far.
  [[nodiscard]] std::string output() const;

 private:
  [[nodiscard]] sys::Process start() const;
  void kill_ranks(int signal) const;

  const std::string mpi_;
  const bool loses_a_process_;
  const int size_;
  TemporaryFolder folder_;
  SharedObject<WorldBoard> board_;
  Injection injection_;  // the latest one
  bool is_used_up_ = false;
  sys::Process mpirun_;
};

// Provides the world that an injection needs; reuses it for the next one until a process of it has
// ended.
class MpirunWorlds {
 public:
  [[nodiscard]] MpirunWorld& suiting(const Injection& injection);
  void end() { world_.reset(); }

 private:
  std::unique_ptr<MpirunWorld> world_;
};

}  // namespace lockstep::test
