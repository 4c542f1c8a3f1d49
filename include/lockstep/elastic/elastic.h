// elastic(): training that survives the loss of processes. The training state is committed in
// memory at each step. When a rank is lost, or nodes join or leave, the remaining ranks form a new
// group and continue from the last commit; their processes are not restarted.
//
//   lockstep::ElasticState state({.out = "out", .save_every = 1000});
//   lockstep::elastic(state, [&](lockstep::ElasticState& state) {        // once per round
//     Net model;
//     lockstep::DistributedDataParallel ddp(model, state.group());
//     torch::optim::AdamW adamw(ddp.parameters(), 1e-3);
//     state.attach(ddp, adamw);                      // restores the last commit
//     while (state.step() < 1000) {
//       ddp.zero_grad();
//       loss(model, batch(state.step())).backward();
//       adamw.step();
//       state.commit();                              // counts a step
//     }
//   });
//
// A round is a period with a fixed set of ranks. The function is called once per round: it makes
// the model, the handle and the optimizer on the group of the round, and attach() gives them the
// newest state that all ranks committed. The number of ranks and the strategy may differ from those
// of the commit. A step that not all ranks committed is repeated; nothing else is lost. RANK,
// WORLD_SIZE and the like in the environment keep their values from the round for which the process
// was started: use state.group() instead.
//
// `lockstep run --max-restarts N` makes rounds. Under another launcher, or none, there is one
// round: nothing is kept in memory, and the loss of a rank throws its usual error; attach() still
// restores the newest checkpoint in `out`. docs/elastic.md says what is lost when.
//
// Memory: each host has two copies of the state (parameters, optimizer state, the program's own
// tensors) in files in /dev/shm, or in the folder of LOCKSTEP_COMMITS, for any number of ranks and
// rounds. The files are removed when the training or the agent ends. With several hosts, each host
// has the whole state, and one remaining host is enough; if buffers differ between ranks, a host
// keeps those of its lowest rank. If no host has the whole state (a model sharded over hosts,
// ignored tensors), nothing is kept in memory, and the group goes back to its newest checkpoint.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/data/loader_plan.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct ElasticOptions {
  InitOptions init = {};  // of each round's group
  // Checkpoints (checkpoint::save()): folder, interval in steps (0: never), and number that is
  // kept.
  std::filesystem::path out = {};
  std::int64_t save_every = 0;
  std::int64_t keep = 2;
  // How long a rank that left a round waits for the next round.
  Duration rejoin_timeout = std::chrono::minutes(10);
  // Number of ranks that compute one copy of the model together, for example by tensor parallelism.
  // The size of group() is the largest possible multiple of this number. A mesh on the group, such
  // as {{"dp", -1}, {"tp", 2}}, may have another number of copies in each round. Surplus ranks wait
  // in elastic() until the round ends. If there are too few ranks for one copy, prints a message
  // and waits for more nodes, or throws BadInput if no more nodes can come.
  int ranks_of_a_model = 1;
  // If true, the agent may start processes of this program before there is a rank for them
  // (`lockstep run --hot-spares`). They load LibTorch, run it once and wait in elastic(); when a
  // rank is lost, one of them replaces it at once. They have no RANK in their environment until
  // then, so code before elastic() must not depend on RANK.
  bool hot_spares = false;
};

// State that is committed in addition to the handle, the optimizer and the random generators.
struct ElasticParts {
  optim::Scheduler* scheduler = nullptr;
  optim::GradScaler* scaler = nullptr;
  // The program's own tensors by name, equal on all ranks (rank 0's are kept). attach() writes into
  // them. Names, shapes and dtypes must be the same in each round.
  std::map<std::string, at::Tensor> tensors = {};
};

// The state of an elastic training, used by one thread. All ranks of group() make its collective
// calls, in the same order.
class ElasticState {
 public:
  // Throws InvalidArgument for negative numbers, for save_every without `out`, and for
  // ranks_of_a_model below 1.
  explicit ElasticState(ElasticOptions options = {});
  ~ElasticState();
  ElasticState(const ElasticState&) = delete;
  ElasticState& operator=(const ElasticState&) = delete;

  // The group of this round. group() and round() throw InvalidArgument outside of elastic()'s
  // function.
  [[nodiscard]] Group& group();
  // Number of this round of the run: starts at 0 and grows by at least one with each later call of
  // the function in the same elastic().
  [[nodiscard]] std::int64_t round() const;

  // Restores the newest state, either committed in memory or from a checkpoint in `out`.
  // Collective: call it once per round, before the first commit. Throws CollectiveFailure if that
  // state has other tensors, because another model committed it. Random generators are restored if
  // the number of ranks is the same as at the commit.
  // The caller owns the arguments and keeps them alive until the function ends.
  void attach(Handle& handle, torch::optim::Optimizer& optimizer, ElasticParts parts = {});

  // Attaches a data loader, once per round: it continues after the batches that were committed.
  template <typename Loader>
  void attach_loader(Loader& loader) {
    if (const std::string place = loader_place(); !place.empty())
      loader.resume(data::LoaderState::from_text(place));
    set_loader([&loader] { return loader.state().to_text(); });
  }

  // Number of updates that were made and committed.
  [[nodiscard]] std::int64_t step() const;
  // The program's own numbers and texts, equal on all ranks. They are committed with the next step
  // and restored after a restart.
  [[nodiscard]] std::map<std::string, double>& numbers();
  [[nodiscard]] std::map<std::string, std::string>& texts();

  // Counts a step and commits the current state. Collective: call it after each update. Saves a
  // checkpoint if one is due, or if nodes join and no host keeps the state in memory (only with
  // save_every). If nodes join or leave, or a rank was lost, throws the exception that ends the
  // round: let it pass, elastic() catches it.
  void commit();

  // Returns the share of the training's time so far that was spent on steps that are in the state,
  // that is, not on restarts or on steps that were repeated. 1 at the beginning.
  [[nodiscard]] double goodput() const;

 private:
  friend bool elastic(ElasticState& state, const std::function<void(ElasticState&)>& train);

  [[nodiscard]] std::string loader_place() const;
  void set_loader(std::function<std::string()> place);

  struct State;
  const std::unique_ptr<State> state_;
};

// Calls `train` once per round, on every rank of its group, until it has returned on all ranks, and
// then returns true. Returns false if this process is no longer needed, because fewer ranks
// continue or it was a surplus rank of the last group: exit normally after the last call, without
// writing results. Exceptions of `train` pass through, except PeerLost, Timeout and Aborted of the
// group under an agent that makes rounds: these start the next round. Throws BadInput and Timeout
// in the cases of init(), and Timeout if no round follows.
//
// A program may call it several times, one after another; each call is a training of its own. It
// begins with the newest checkpoint in its `out`, or with step 0, and not with the commits of an
// earlier call. All processes must make the same calls in the same order and with the same
// ranks_of_a_model, also if a call returns false, and none after a call that threw. Ranks that meet
// in different calls throw BadInput. In a process that replaces a lost one, calls that the others
// have finished return true at once.
bool elastic(ElasticState& state, const std::function<void(ElasticState&)>& train);

}  // namespace lockstep

#pragma GCC visibility pop
