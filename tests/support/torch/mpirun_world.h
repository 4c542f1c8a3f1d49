// Processes that mpirun started (comm/programs/injected_ranks.cc), to be the ranks of one injection
// after the other.
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

// Implementations of MPI that this build has a plug-in for and this machine an mpirun.
[[nodiscard]] std::vector<std::string> startable_mpis();

// What the test program and the processes of a world write for each other.
struct WorldBoard {
  std::atomic<int> test_program{0};  // its process number
  std::atomic<bool> is_over{false};
  // Written before `number`, which counts the injections.
  std::atomic<std::int64_t> number{0};
  Misdeed misdeed{};
  std::uint64_t seed = 0;
  Duration deadline{};
  std::array<char, 100> place{};
  InjectionBoard injection;

  struct Member {
    std::atomic<int> process{0};  // 0: not ready yet
    std::atomic<bool> is_dead{false};
    std::atomic<std::int64_t> ended{0};  // the injection that it has left
  };
  std::array<Member, most_injected_ranks> members{};
};

class MpirunWorld {
 public:
  // One that suits it. Blocks until all are ready; Error with mpirun's words when they do not come.
  explicit MpirunWorld(const Injection& injection);
  // Blocks until mpirun has ended. A test failure when something has to be killed for that.
  ~MpirunWorld();
  MpirunWorld(const MpirunWorld&) = delete;
  MpirunWorld& operator=(const MpirunWorld&) = delete;

  [[nodiscard]] bool suits(const Injection& injection) const;
  // Begins it, with the store at `place`.
  void begin(const Injection& injection, const std::string& place);
  [[nodiscard]] const InjectionBoard& board() const { return board_->injection; }
  // Blocks until that rank has left the injection; false when it died or has not by then.
  [[nodiscard]] bool has_ended(int rank, std::chrono::milliseconds limit) const;
  // Lets the victim go on that is stopped or computes, and waits until it has left.
  void release_victim();
  // What was printed so far.
  [[nodiscard]] std::string output() const;

 private:
  [[nodiscard]] sys::Process start() const;
  void kill_ranks(int signal) const;

  const std::string mpi_;
  const bool loses_a_process_;
  const int size_;
  TemporaryFolder folder_;
  SharedObject<WorldBoard> board_;
  Injection injection_;  // the latest
  bool is_used_up_ = false;
  sys::Process mpirun_;
};

// The world that an injection needs, kept for the next one while none of its processes has ended.
class MpirunWorlds {
 public:
  [[nodiscard]] MpirunWorld& suiting(const Injection& injection);
  void end() { world_.reset(); }

 private:
  std::unique_ptr<MpirunWorld> world_;
};

}  // namespace lockstep::test
