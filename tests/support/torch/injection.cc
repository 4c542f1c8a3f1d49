#include "support/torch/injection.h"

#include <lockstep/store/store_server.h>

#include "base/format.h"
#include "support/torch/drawn_numbers.h"
#include "support/torch/injected_rank.h"
#include "support/torch/mpirun_world.h"
#include "support/torch/shared_object.h"

#include <array>
#include <chrono>
#include <ostream>
#include <thread>
#include <utility>

#include <unistd.h>

namespace lockstep::test {

// The processes of one injection.
class InjectedRanks {
 public:
  virtual ~InjectedRanks() = default;
  [[nodiscard]] virtual const InjectionBoard& board() const = 0;
  // Blocks until that rank has left its group in order. Returns false if the rank has not left
  // within `limit`.
  [[nodiscard]] virtual bool has_left(int rank, std::chrono::milliseconds limit) = 0;
  // Returns the output of the ranks, if it is available here.
  [[nodiscard]] virtual std::string output() const { return {}; }
};

namespace {

using namespace std::chrono_literals;

// How long a survivor may take to get the error and to leave.
constexpr auto survivor_limit = 20s;

// Returns an unused socket name.
std::string fresh_place() {
  static int places = 0;
  return formatted("@lockstep-injection-{}-{}", ::getpid(), ++places);
}

// Holds the store in a separate process, as a launcher does, because a stopped rank could hold the
// store's lock.
void hold_store(const std::string& place) {
  const StoreServer server({.host = place});
  std::this_thread::sleep_for(1h);
}

class ForkedRanks final : public InjectedRanks {
 public:
  explicit ForkedRanks(const Injection& injection)
      : processes_(injection.ranks() + 1, [this, injection](int rank) {
          if (rank == injection.ranks()) return hold_store(place_);
          live_injected(injection, rank, place_, *board_);
        }) {}

  [[nodiscard]] const InjectionBoard& board() const override { return *board_; }
  [[nodiscard]] bool has_left(int rank, std::chrono::milliseconds limit) override {
    return processes_.wait(rank, limit).ok();
  }

 private:
  const SharedObject<InjectionBoard> board_;
  const std::string place_ = fresh_place();
  RankProcesses processes_;
};

class RanksOfMpirun final : public InjectedRanks {
 public:
  RanksOfMpirun(const Injection& injection, MpirunWorld& world)
      : world_(world), store_(1, [this](int) { hold_store(place_); }) {
    world_.begin(injection, place_);
  }
  ~RanksOfMpirun() override { world_.release_victim(); }

  [[nodiscard]] const InjectionBoard& board() const override { return world_.board(); }
  [[nodiscard]] bool has_left(int rank, std::chrono::milliseconds limit) override {
    return world_.has_ended(rank, limit);
  }
  [[nodiscard]] std::string output() const override { return world_.output(); }

 private:
  MpirunWorld& world_;
  const std::string place_ = fresh_place();
  RankProcesses store_;
};

std::unique_ptr<InjectedRanks> start(const Injection& injection, MpirunWorlds& worlds) {
  if (injection.target.backend == BackendKind::mpi)
    return std::make_unique<RanksOfMpirun>(injection, worlds.suiting(injection));
  return std::make_unique<ForkedRanks>(injection);
}

std::string problem_of(const Injection& injection, int rank, const InjectionBoard::Report& report,
                       const std::string& output) {
  return formatted("{} on {}, {} ranks, seed {}: rank {} did it at step {}, and rank {} {} {}{}{}",
                   name_of(injection.misdeed), injection.target.name(), injection.ranks(),
                   injection.seed, injection.victim(), injection.step(), rank,
                   report.is_right ? "did not end, although it was told" : "was told",
                   report.at == 0 ? std::string("nothing") : std::string(report.text.data()),
                   output.empty() ? "" : "; the ranks printed: ", output);
}

}  // namespace

std::string Target::name() const {
  return backend == BackendKind::mpi ? mpi : std::string(name_of(backend));
}

std::ostream& operator<<(std::ostream& out, const Target& target) { return out << target.name(); }

std::vector<BackendKind> backends_of_processes() {
  auto all = is_under_mpirun() ? std::vector<BackendKind>() : backends();
  std::erase_if(
      all, [](BackendKind one) { return one != BackendKind::shm && one != BackendKind::gloo; });
  return all;
}

std::vector<Target> injection_targets() {
  std::vector<Target> result;
  if (is_under_mpirun()) return result;
  for (auto backend : backends()) {
    if (backend != BackendKind::local) result.push_back({backend});
  }
  for (auto& mpi : startable_mpis()) result.push_back({BackendKind::mpi, std::move(mpi)});
  return result;
}

std::string name_of(Misdeed misdeed) {
  constexpr std::array names{"kill",      "stop",      "loop",  "exit",  "exception",
                             "operation", "reduction", "dtype", "count", "root",
                             "tag",       "order",     "ahead"};
  return names.at(static_cast<std::size_t>(misdeed));
}

const std::vector<Misdeed>& all_misdeeds() {
  static const std::vector<Misdeed> all = [] {
    std::vector<Misdeed> result;
    for (int number = 0; number <= static_cast<int>(Misdeed::ahead); ++number)
      result.push_back(static_cast<Misdeed>(number));
    return result;
  }();
  return all;
}

int Injection::ranks() const { return 2 + DrawnNumbers(seed).below(most_injected_ranks - 1); }
int Injection::victim() const { return DrawnNumbers(seed + 1).below(ranks()); }
int Injection::step() const { return DrawnNumbers(seed + 2).below(12); }

struct RunningInjection::State {
  const Injection injection;
  const std::unique_ptr<InjectedRanks> ranks;
};

RunningInjection::RunningInjection(const Injection& injection, MpirunWorlds& worlds)
    : state_(new State{injection, start(injection, worlds)}) {}
RunningInjection::~RunningInjection() = default;
RunningInjection::RunningInjection(RunningInjection&&) noexcept = default;

Outcome RunningInjection::finish() {
  const auto& [injection, ranks] = *state_;
  const auto& board = ranks->board();
  Outcome outcome;
  for (int rank = 0; rank < injection.ranks(); ++rank) {
    if (rank == injection.victim()) continue;
    const bool has_left = ranks->has_left(rank, survivor_limit);
    const auto& report = board.reports.at(static_cast<std::size_t>(rank));
    if (has_left && report.at != 0 && report.is_right) {
      outcome.seconds.push_back(static_cast<double>(report.at - board.deed) / 1e9);
      outcome.texts.emplace_back(report.text.data());
    } else if (outcome.named_rightly) {
      outcome.named_rightly = false;
      outcome.problem = problem_of(injection, rank, report, ranks->output());
    }
  }
  return outcome;
}

}  // namespace lockstep::test
