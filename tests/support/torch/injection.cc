#include "support/torch/injection.h"

#include <lockstep/base/error.h>
#include <lockstep/base/fingerprint.h>
#include <lockstep/base/format.h>
#include <lockstep/base/scope_exit.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include "comm/backends.h"
#include "comm/flight/recorded_backend.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

constexpr int most_ranks = 5;

// What the ranks tell the test program, which may not trust a rank that dies to say anything.
struct Board {
  struct Report {
    std::atomic<std::int64_t> at{0};  // of the error, 0: none yet
    std::atomic<bool> is_right{false};
    std::array<char, 1000> text{};
  };
  std::atomic<std::int64_t> deed{0};
  std::array<Report, most_ranks> reports{};
};

class SharedBoard {
 public:
  SharedBoard()
      : board_(new(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0)) Board) {}
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  [[nodiscard]] Board& operator*() const { return *board_; }
  [[nodiscard]] Board* operator->() const { return board_; }

 private:
  Board* board_;
};

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  // 0 .. limit - 1
  int below(int limit) {
    state_ = combine_fingerprints(state_, 1);
    return static_cast<int>(state_ % static_cast<std::uint64_t>(limit));
  }

 private:
  std::uint64_t state_;
};

struct InjectedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The life of one rank.
class Rank {
 public:
  Rank(const Injection& injection, int rank, Group world, Board& board)
      : injection_(injection), rank_(rank), world_(std::move(world)), board_(board) {}

  void run() {
    try {
      for (int step = 0;; ++step) {
        if (rank_ == injection_.victim() && step == injection_.step()) {
          misbehave(step);
        } else {
          call(step).wait();
        }
      }
    } catch (const Error& error) {
      report(error);
    }
  }

 private:
  // What the plan has for a step: of many lengths, on the same seed the same for all ranks.
  struct Wanted {
    std::int64_t length;
    bool reduces;
  };
  [[nodiscard]] Wanted wanted(int step) const {
    Numbers plan(combine_fingerprints(injection_.seed, static_cast<std::uint64_t>(step)));
    const std::int64_t length = plan.below(3) == 0 ? 100'000 : 1 + plan.below(2000);
    return {length, plan.below(3) != 0};
  }

  // The step's call, with the rank now and then busy before it.
  Work call(int step) {
    Numbers own(
        combine_fingerprints(injection_.seed, static_cast<std::uint64_t>(step * 8 + rank_)));
    if (own.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own.below(2000)));
    const auto [length, reduces] = wanted(step);
    const auto tag = formatted("step {}", step);
    return post(reduces, at::ones({length}), step, {.tag = tag});
  }
  Work post(bool reduces, const at::Tensor& values, int step, const CallOptions& options) {
    return reduces ? world_.all_reduce(values, Op::sum, options)
                   : world_.broadcast(values, step % world_.size(), options);
  }

  void note_deed() { board_.deed = now(); }

  // Sends itself the signal at some moment of the calls that follow.
  void signal_soon(int signal) {
    const auto delay = std::chrono::microseconds(Numbers(injection_.seed + 7).below(3000));
    std::thread([this, delay, signal] {
      std::this_thread::sleep_for(delay);
      note_deed();
      ::kill(::getpid(), signal);
    }).detach();
    for (int step = injection_.step();; ++step) call(step).wait();
  }

  void misbehave(int step) {
    const auto misdeed = injection_.misdeed;
    if (misdeed == Misdeed::kill) signal_soon(SIGKILL);
    if (misdeed == Misdeed::stop) signal_soon(SIGSTOP);
    note_deed();
    switch (misdeed) {
      case Misdeed::loop:
        for (volatile std::uint64_t turn = 0;; turn = turn + 1) continue;
      case Misdeed::exit:
        ::_exit(0);
      case Misdeed::exception:
        throw InjectedError("injected");
      default:
        differ(step);
    }
  }

  // A call of its own where the others make that of the step.
  void differ(int step) {
    if (injection_.misdeed == Misdeed::order) {
      call(step + 1).wait();
      call(step).wait();
      return;
    }
    if (injection_.misdeed == Misdeed::ahead) {
      call(step).wait();
      call(step).wait();
      return;
    }
    const auto [length, reduces] = wanted(step);
    const auto tag = formatted("step {}", step);
    const CallOptions options{.tag = tag};
    switch (injection_.misdeed) {
      case Misdeed::operation:
        return world_.barrier(options).wait();
      case Misdeed::reduction:
        return world_.all_reduce(at::ones({length}), Op::max, options).wait();
      case Misdeed::root:
        return world_.broadcast(at::ones({length}), (step + 1) % world_.size(), options).wait();
      case Misdeed::dtype:
        return post(reduces, at::ones({length}, at::kInt), step, options).wait();
      case Misdeed::count:
        return post(reduces, at::ones({length + 1}), step, options).wait();
      default:
        return post(reduces, at::ones({length}), step, {.tag = "another step"}).wait();
    }
  }

  void report(const Error& error) {
    auto& report = board_.reports.at(static_cast<std::size_t>(rank_));
    report.is_right = is_right(error);
    std::snprintf(report.text.data(), report.text.size(), "%s", error.what());
    report.at = now();
  }

  [[nodiscard]] bool is_right(const Error& error) const {
    const std::string text = error.what();
    const auto victim = formatted("rank {}", injection_.victim());
    const bool named = text.find(victim + " ") != std::string::npos;
    switch (injection_.misdeed) {
      case Misdeed::kill:
      case Misdeed::exit:
      case Misdeed::exception:
        return named && dynamic_cast<const PeerLost*>(&error) != nullptr;
      case Misdeed::stop:
      case Misdeed::loop:
        return named && dynamic_cast<const Timeout*>(&error) != nullptr;
      default:
        return dynamic_cast<const Mismatch*>(&error) != nullptr &&
               text.find(victim + " called ") != std::string::npos &&
               text.find("injection.cc:") != text.rfind("injection.cc:");
    }
  }

  const Injection& injection_;
  const int rank_;
  Group world_;
  Board& board_;
};

void live(const Injection& injection, int rank, const std::string& place, Board& board) {
  const TcpStoreOptions server{.host = place, .connect_timeout = 10s};
  const BackendOptions options{
      .timeout = injection.deadline, .join_timeout = 10s, .arena_bytes = 16 << 20};
  auto world = make_backend(name_of(injection.engine), std::make_shared<TcpStore>(server), rank,
                            injection.ranks(), options);
  try {
    Rank(injection, rank, Group(flight::recorded(std::move(world)), "world", injection.deadline),
         board)
        .run();
  } catch (const InjectedError&) {
    // What the rank held has gone on the way here.
  }
}

// The name of a socket that nobody else uses.
std::string fresh_place() {
  static int places = 0;
  return formatted("@lockstep-injection-{}-{}", ::getpid(), ++places);
}

std::string problem_of(const Injection& injection, int rank, const Board::Report& report) {
  return formatted("{} on {}, {} ranks, seed {}: rank {} did it at step {}, and rank {} {} {}",
                   name_of(injection.misdeed), name_of(injection.engine), injection.ranks(),
                   injection.seed, injection.victim(), injection.step(), rank,
                   report.is_right ? "did not end, although it was told" : "was told",
                   report.at == 0 ? std::string("nothing") : std::string(report.text.data()));
}

}  // namespace

std::vector<Engine> engines_of_processes() {
  auto all = is_under_mpirun() ? std::vector<Engine>() : engines();
  std::erase_if(all, [](Engine one) { return one != Engine::shm && one != Engine::gloo; });
  return all;
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

int Injection::ranks() const { return 2 + Numbers(seed).below(most_ranks - 1); }
int Injection::victim() const { return Numbers(seed + 1).below(ranks()); }
int Injection::step() const { return Numbers(seed + 2).below(12); }

struct RunningInjection::State {
  explicit State(const Injection& what)
      // The last process holds the store, as a launcher would: a rank that stops may hold its lock.
      : injection(what), processes(injection.ranks() + 1, [this](int rank) {
          if (rank < injection.ranks()) return live(injection, rank, place, *board);
          const StoreServer server({.host = place});
          std::this_thread::sleep_for(1h);
        }) {}

  const Injection injection;
  const SharedBoard board;
  const std::string place = fresh_place();
  RankProcesses processes;
};

RunningInjection::RunningInjection(const Injection& injection)
    : state_(std::make_unique<State>(injection)) {}
RunningInjection::~RunningInjection() = default;
RunningInjection::RunningInjection(RunningInjection&&) noexcept = default;

Outcome RunningInjection::finish() {
  const auto& injection = state_->injection;
  const Board& board = *state_->board;
  Outcome outcome;
  for (int rank = 0; rank < injection.ranks(); ++rank) {
    if (rank == injection.victim()) continue;
    const auto result = state_->processes.wait(rank, 20s);
    const auto& report = board.reports.at(static_cast<std::size_t>(rank));
    if (result.ok() && report.at != 0 && report.is_right) {
      outcome.seconds.push_back(static_cast<double>(report.at - board.deed) / 1e9);
      outcome.texts.emplace_back(report.text.data());
    } else if (outcome.named_rightly) {
      outcome.named_rightly = false;
      outcome.problem = problem_of(injection, rank, report);
    }
  }
  return outcome;
}

}  // namespace lockstep::test
