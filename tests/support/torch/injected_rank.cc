#include "support/torch/injected_rank.h"

#include <lockstep/base/error.h>
#include <lockstep/store/tcp_store.h>

#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/api/group_state.h"
#include "comm/init/backends.h"
#include "support/torch/drawn_numbers.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

std::int64_t now() { return Clock::now().time_since_epoch().count(); }

struct InjectedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs one rank.
class InjectedRank {
 public:
  InjectedRank(const Injection& injection, int rank, Group world, InjectionBoard& board)
      : injection_(injection), rank_(rank), world_(std::move(world)), board_(board) {}

  void run() {
    try {
      come_together();
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
  // Synchronises the ranks first: the deadlines of the injection must not include the time to load
  // LibTorch.
  void come_together() {
    auto values = at::ones({100'000});
    world_.all_reduce(values, Op::sum, {.tag = "begin", .timeout = 10s}).wait();
    world_.broadcast(values, 0, {.tag = "begin", .timeout = 10s}).wait();
  }

  // The planned call of a step: various lengths, the same on all ranks for the same seed.
  struct Wanted {
    std::int64_t length;
    bool reduces;
  };
  [[nodiscard]] Wanted wanted(int step) const {
    DrawnNumbers plan(combine_fingerprints(injection_.seed, static_cast<std::uint64_t>(step)));
    const std::int64_t length = plan.below(3) == 0 ? 100'000 : 1 + plan.below(2000);
    return {length, plan.below(3) != 0};
  }

  // Makes the step's call, sometimes after a random delay.
  Work call(int step) {
    DrawnNumbers own(
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

  // Makes calls, and sends the signal to this process at a random moment during them.
  void signal_soon(int signal) {
    const auto delay = std::chrono::microseconds(DrawnNumbers(injection_.seed + 7).below(3000));
    std::thread([&board = board_, delay, signal] {
      std::this_thread::sleep_for(delay);
      board.deed = now();
      ::kill(::getpid(), signal);
    }).detach();
    for (int step = injection_.step();; ++step) call(step).wait();
  }

  void misbehave(int step) {
    const auto misdeed = injection_.misdeed;
    if (misdeed == Misdeed::kill) signal_soon(SIGKILL);
    if (misdeed == Misdeed::stop) signal_soon(SIGSTOP);
    board_.deed = now();
    switch (misdeed) {
      case Misdeed::loop:
        while (!board_.is_over) continue;
        throw InjectedError("computed until the others were told");
      case Misdeed::exit:
        ::_exit(0);
      case Misdeed::exception:
        throw InjectedError("injected");
      default:
        differ(step);
    }
  }

  // Makes a call that differs from the other ranks' call of the step.
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
    const bool named = text.find(victim + " ") != std::string::npos ||
                       text.find(victim + "'s ") != std::string::npos;
    switch (injection_.misdeed) {
      case Misdeed::kill:
      case Misdeed::exit:
      case Misdeed::exception:
        return named && dynamic_cast<const PeerLost*>(&error) != nullptr;
      case Misdeed::stop:
      case Misdeed::loop:
        return named && dynamic_cast<const Timeout*>(&error) != nullptr;
      default: {
        const std::string_view here = "injected_rank.cc:";
        return dynamic_cast<const Mismatch*>(&error) != nullptr &&
               text.find(victim + " called ") != std::string::npos &&
               text.find(here) != text.rfind(here);
      }
    }
  }

  const Injection& injection_;
  const int rank_;
  Group world_;
  InjectionBoard& board_;
};

}  // namespace

void live_injected(const Injection& injection, int rank, const std::string& place,
                   InjectionBoard& board) {
  const TcpStoreOptions server{.host = place, .connect_timeout = 10s};
  const BackendOptions options{.timeout = injection.deadline,
                               .join_timeout = 10s,
                               .arena_bytes = 16 << 20,
                               .hosts = pretended_hosts(injection.ranks())};
  std::string name(name_of(injection.target.backend));
  if (injection.target.backend == BackendKind::hierarchical) name += ":gloo";
  auto world =
      make_backend(name, std::make_shared<TcpStore>(server), rank, injection.ranks(), options);
  try {
    InjectedRank(injection, rank, recorded_world(std::move(world), injection.deadline), board)
        .run();
  } catch (const InjectedError&) {
    // Unwinding has destroyed everything that the rank held.
  }
}

}  // namespace lockstep::test
