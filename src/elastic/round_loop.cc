#include "elastic/round_loop.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "comm/init/init.h"
#include "module/checks.h"
#include "parallel/handle_state.h"
#include "rank_env/commit_folder.h"
#include "rank_env/rank_ends.h"
#include "rank_env/rank_info.h"
#include "rank_env/variables.h"
#include "sys/files.h"
#include "sys/thread.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {

// RoundWatch: a thread that reads from the store that the round has ended. If a worker was lost, it
// aborts the group, so that no rank waits for the deadline of a collective. If the round ends
// without a failure, the loop notices it at its next commit.
class RoundWatch {
 public:
  // `ended` calls RoundClient::ended() on a copy of RoundClient that only this thread uses. Errors
  // of the store are ignored, because training does not need it.
  explicit RoundWatch(std::function<std::optional<std::string>()> ended)
      : ended_(std::move(ended)), thread_("round watch", [this] { look_until_stopped(); }) {}
  ~RoundWatch() {
    {
      Lock lock(mutex_);
      is_stopped_ = true;
      group_.reset();
    }
    changed_.notify_all();
    thread_.join();
  }
  RoundWatch(const RoundWatch&) = delete;
  RoundWatch& operator=(const RoundWatch&) = delete;

  // Sets the group to abort.
  void watch(const Group& group) {
    Lock lock(mutex_);
    group_ = group;
  }
  // Sets a function that aborts the strategy's own groups with a reason: ranks of these groups may
  // wait for live peers, while those peers wait for the lost rank. Called by the watch's thread.
  void watch(std::function<void(std::string_view)> abort) {
    Lock lock(mutex_);
    abort_ = std::move(abort);
  }
  // Returns the reason why the round ended; empty while it continues.
  [[nodiscard]] std::string end() const {
    Lock lock(mutex_);
    return end_;
  }
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  void look_until_stopped() {
    constexpr auto between_questions = std::chrono::milliseconds(50);
    constexpr auto after_an_error = std::chrono::seconds(1);
    std::optional<std::string> end;
    Duration pause = between_questions;
    for (;;) {
      {
        Lock lock(mutex_);
        changed_.wait_for(lock.native(), pause,
                          [&]() LOCKSTEP_REQUIRES(mutex_) { return is_stopped_; });
        if (is_stopped_) return;
      }
      try {
        pause = between_questions;
        end = ended_();
      } catch (const Error&) {
        pause = after_an_error;
      }
      if (!end) continue;
      std::optional<Group> group;
      std::function<void(std::string_view)> abort;
      {
        Lock lock(mutex_);
        end_ = *end;
        group = group_;
        abort = abort_;
      }
      has_ended_.store(true, std::memory_order_release);
      if (is_orderly(*end)) return;
      if (!group) continue;  // not made yet: try again
      const std::string reason = formatted("the round has ended: {}", *end);
      try {
        group->abort(reason);
      } catch (const Error&) {
        // The group is dead already.
      }
      if (abort) abort(reason);
      return;
    }
  }

  const std::function<std::optional<std::string>()> ended_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool is_stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Group> group_ LOCKSTEP_GUARDED_BY(mutex_);
  std::function<void(std::string_view)> abort_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string end_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> has_ended_{false};
  sys::Thread thread_;
};

namespace {

// Returns the agent's pid, also if wrapper processes lie between, or the parent's pid if the
// descriptor of the agent is closed.
int agent_process() {
  const auto descriptor = environment::integer(rank_env::variable::agent_descriptor, 0,
                                               std::numeric_limits<int>::max());
  if (!descriptor) return ::getppid();
  try {
    std::istringstream lines(sys::read_file(formatted("/proc/self/fdinfo/{}", *descriptor)));
    for (std::string word; lines >> word;)
      if (word == "Pid:" && lines >> word)
        if (const auto pid = parse_integer(word); pid && *pid > 0) return static_cast<int>(*pid);
  } catch (const SystemError&) {
    // The descriptor is closed.
  }
  return ::getppid();
}

constexpr const char* done_mark = "done";
constexpr const char* over_mark = "over";  // value: number of the round whose body has returned
constexpr auto between_asks = std::chrono::milliseconds(50);

std::string run_id() { return environment::text(rank_env::variable::run_id).value_or("run"); }

// The place of this process in the newest round that it knows. A process may train several times,
// but the environment has its place in its first round only.
struct OwnPlace {
  int calls = 0;                         // trainings that have begun
  std::int64_t round = -1;               // -1: the environment has round and place
  std::optional<RoundPlace> place = {};  // in `round`
  bool has_left = false;                 // the process has no place any more
};

// Returns this rank's folder on this host; the group may span several hosts. A later training of
// the program has a folder of its own, because commits of an earlier one may remain.
std::filesystem::path folder_of_commits(const RoundClient* rounds) {
  if (rounds == nullptr) return {};
  try {
    rank_env::make_commit_folder(run_id(), agent_process());
    const std::filesystem::path folder = rank_env::commit_folder(run_id());
    return rounds->call() == 0 ? folder : folder / formatted("call-{}", rounds->call());
  } catch (const std::exception& error) {
    log::warning("elastic: {}; no state is kept in memory", error.what());
    return {};
  }
}

// Informs the other ranks of the group that this rank leaves, because they may be waiting for it.
void leave(Group& group, const std::string& why) noexcept {
  try {
    group.abort(why);
  } catch (const std::exception&) {
    // The group is dead already.
  }
}

// Ends the training on all ranks. After this, the loss of a worker must not start another round.
void finish(Round& round) {
  constexpr CallOptions at_the_end{.tag = "end of training"};
  round.group().barrier(at_the_end).wait();
  if (round.group().is_root()) {
    if (!round.is_unfinished()) round.set_flag(done_mark, "1");
    round.set_flag(over_mark, formatted("{}", round.number()));
  }
  round.group().barrier(at_the_end).wait();
  round.commits().remove();
}

// Returns true for errors that would occur again on every rank: options, files, a state of another
// model.
bool is_final(const std::exception& error) {
  return dynamic_cast<const BadInput*>(&error) != nullptr ||
         dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
         dynamic_cast<const CollectiveFailure*>(&error) != nullptr;
}

void say_final(const RoundClient& rounds, const std::string& why) noexcept {
  try {
    rounds.say_final(why);
  } catch (const std::exception&) {
    // The agent notices the end anyway.
  }
}

// Runs `body`. Returns an error that all ranks have instead of throwing it: in this case no rank
// waits for another rank, so the groups can end normally.
std::exception_ptr run_body(Round& round, const std::function<void(Round&)>& body) {
  try {
    body(round);
    finish(round);
    return nullptr;
  } catch (const RoundEnded&) {
    throw;
  } catch (const CollectiveFailure&) {
    return std::current_exception();
  } catch (const std::exception& error) {
    leave(round.group(), error.what());
    throw;
  }
}

rank_env::RankInfo place_of(const RoundClient& rounds, const RoundPlace* place) {
  return place != nullptr ? rank_info(*place, rounds.number()) : rank_env::detect_rank();
}

Group join(const rank_env::RankInfo& info, const InitOptions& options, const RoundClient& rounds) {
  return init_at(info, options,
                 [&](std::shared_ptr<Store> store) { return rounds.filtered(std::move(store)); });
}

// Waits for the end of the round as a surplus rank. This rank does not join a group, so that no
// rank waits for it; it reads everything from the store.
void wait_beside(const LoopOptions& options, const RoundClient& rounds, const RoundWatch& watch) {
  const std::shared_ptr<void> meanwhile = options.while_waiting ? options.while_waiting() : nullptr;
  rank_env::watch_agent();
  const std::string number = formatted("{}", rounds.number());
  while (rounds.flag(over_mark) != number) {
    if (watch.has_ended()) throw RoundEnded(watch.end());
    std::this_thread::sleep_for(between_asks);
  }
}

// Waits until more nodes join. If no more nodes can join, one rank throws BadInput, which ends the
// run.
void wait_for_more(const RoundClient& rounds, const RoundWatch& watch,
                   const rank_env::RankInfo& place) {
  const std::string there = counted(place.size, "rank");
  check_input(place.rank > 0 || !rounds.are_nodes_fixed(),
              "{} cannot make one copy of the model: start more ranks, or give --nnodes MIN:MAX, "
              "so that more nodes can join",
              there);
  if (place.rank == 0)
    log::warning("round {}: {} cannot make one copy of the model: waiting for more nodes",
                 rounds.number(), there);
  rank_env::watch_agent();
  while (!watch.has_ended()) std::this_thread::sleep_for(between_asks);
  throw RoundEnded(watch.end());
}

// A process that replaces a lost one makes all calls of the program again, but the others may have
// left one of them by an exception.
void check_same_call(const Group& group, int call) {
  const auto calls = modules::numbers_of_all(group, {call}, {.tag = "calls of elastic()"});
  for (std::size_t rank = 0; rank < calls.size(); ++rank)
    check_input(calls[rank] == call,
                "elastic(): this process makes call {}, rank {} makes call {}: all processes must "
                "make the same calls, and none after one that threw",
                call, rank, calls[rank]);
}

// Runs one round. If an error on all of its ranks ended the round, returns the error.
std::exception_ptr be_in_round(const LoopOptions& options, const RoundClient& rounds,
                               const RoundPlace* place, const std::function<void(Round&)>& body,
                               RoundTimes& times, bool& has_part) {
  rounds.survive();
  RoundWatch watch([rounds] { return rounds.ended(); });
  rank_env::RankInfo info = place_of(rounds, place);
  const int wanted = options.ranks_wanted ? options.ranks_wanted(info.size) : info.size;
  has_part = info.rank < wanted;
  if (!has_part) {
    if (wanted == 0) wait_for_more(rounds, watch, info);
    log::info("round {}: {} of {} ranks make whole copies of the model; this one waits",
              rounds.number(), wanted, info.size);
    wait_beside(options, rounds, watch);
    return nullptr;
  }
  info.size = wanted;
  if (wanted == 1) info.rendezvous.reset();
  Group group = join(info, options.init, rounds);
  watch.watch(group);
  check_same_call(group, rounds.call());
  times.joined();
  Round round(group, &rounds, &watch, std::exchange(times, {}));
  ScopeExit body_ended([&] { times.lost(); });
  return run_body(round, body);
}

// Returns the reason why the round ended, unless `body` returned.
std::optional<std::string> run_round(const LoopOptions& options, const RoundClient& rounds,
                                     const RoundPlace* place,
                                     const std::function<void(Round&)>& body, RoundTimes& times,
                                     bool& has_part) {
  try {
    const std::exception_ptr failure = be_in_round(options, rounds, place, body, times, has_part);
    if (failure) std::rethrow_exception(failure);
    return std::nullopt;
  } catch (const RoundEnded& end) {
    return end.what();
  } catch (const PeerLost& loss) {
    return loss.what();
  } catch (const Timeout& timeout) {
    return timeout.what();
  } catch (const Aborted& end) {
    return end.what();
  } catch (const std::exception& error) {
    if (is_final(error)) say_final(rounds, error.what());
    throw;
  }
}

}  // namespace

Round::Round(Group group, const RoundClient* rounds, RoundWatch* watch, RoundTimes times)
    : group_(std::move(group)),
      rounds_(rounds),
      watch_(watch),
      commits_(group_, folder_of_commits(rounds), number()),
      times_(times) {}

void Round::abort_on_end(const Handle& handle) {
  if (watch_ != nullptr) watch_->watch(HandleState::abort_of(handle));
}

RoundOfRun Round::of_run() const { return {run_id(), number()}; }

void Round::commit(const CommitContent& content, const std::function<void()>& save) {
  if (!has_agent()) return;
  const bool leaves = commits_.commit(content, watch_->has_ended());
  if (!std::exchange(has_committed_, true) && number() > 0 && group_.is_root())
    log::info("round {}: its first step is committed: {}", number(), times_.text());
  if (!leaves) return;
  if (save && !is_kept_on_a_host()) save();
  throw RoundEnded(
      formatted("round {} ends: {}", number(),
                watch_->has_ended() ? watch_->end() : "another rank reported its end"));
}

bool Round::is_kept_on_a_host() const {
  constexpr CallOptions at_the_end{.tag = "hosts with a commit"};
  return std::ranges::max(modules::numbers_of_all(group_, {commits_.are_kept()}, at_the_end)) > 0;
}

std::string Round::flag(const std::string& name) {
  return modules::text_of_root(
      group_, [&] { return has_agent() ? rounds_->flag(name).value_or("") : std::string(); });
}

void Round::set_flag(const std::string& name, const std::string& value) {
  if (has_agent()) rounds_->set_flag(name, value);
}

void say_final_failure(const std::string& why) noexcept {
  try {
    if (const auto rounds = RoundClient::of_environment(std::chrono::seconds(5)))
      say_final(*rounds, why);
  } catch (const std::exception&) {
    // The agent notices the end anyway.
  }
}

bool run_rendezvous_rounds(const LoopOptions& options, const std::function<void(Round&)>& body) {
  static OwnPlace own;
  if (own.has_left) return false;
  if (rank_env::is_hot_spare()) {
    warm_up();
    if (options.prepare) options.prepare();
    own.has_left = !rank_env::wait_for_assignment();
    if (own.has_left) return false;
  }
  std::optional<RoundClient> rounds = RoundClient::of_environment(options.init.join_timeout);
  if (!rounds) {
    Group group = init(options.init);
    const int wanted = options.ranks_wanted ? options.ranks_wanted(group.size()) : group.size();
    check_input(wanted == group.size(),
                "expected a number of ranks for whole copies of the model, found {}", group.size());
    Round round(std::move(group), nullptr, nullptr);
    body(round);
    return true;
  }
  rounds->begin_call(own.calls++, own.round);
  if (options.hot_spares) rounds->allow_hot_spares();
  RoundTimes times;
  times.placed();
  for (;;) {
    if (rounds->flag(done_mark)) return true;
    bool has_part = true;
    const std::optional<std::string> end =
        run_round(options, *rounds, own.place ? &*own.place : nullptr, body, times, has_part);
    if (!end) return has_part;
    log::info("round {} is over for this worker: {}", rounds->number(), *end);
    times.left();
    own.place = rounds->next(options.rejoin_timeout);
    own.round = rounds->number();
    own.has_left = !own.place;
    if (own.has_left) return false;
    times.placed();
  }
}

void warm_up() {
  constexpr std::int64_t rows = 2, heads = 2, block = 8, width = 16, words = 32;
  const auto parameter = [](at::IntArrayRef sizes) {
    return at::full(sizes, 0.01).requires_grad_(true);
  };
  std::vector<at::Tensor> parameters{parameter({words, width}), parameter({width, width}),
                                     parameter({width}), parameter({words, width})};
  const at::Tensor ids = at::zeros({rows, block}, at::kLong);
  at::Tensor x = at::embedding(parameters[0], ids);
  x = at::layer_norm(x, {width}, parameters[2], parameters[2]);
  const at::Tensor q = x.view({rows, block, heads, width / heads}).transpose(1, 2);
  x = at::scaled_dot_product_attention(q, q, q, std::nullopt, 0.0, true)
          .transpose(1, 2)
          .reshape({rows, block, width});
  x = at::gelu(at::linear(x, parameters[1], parameters[2]));
  const at::Tensor logits = at::linear(x, parameters[3]).view({rows * block, words});
  at::cross_entropy_loss(logits, ids.view({rows * block})).backward();
  torch::optim::AdamW(parameters).step();
}

}  // namespace lockstep
