// elastic(): training that survives its processes. The state of the training is committed in memory
// each step; when a rank is lost, or nodes join or leave, the ranks that are there meet in a new
// group and go on where the last commit was, without being started again.
//
//   lockstep::ElasticState state({.out = "out", .save_every = 1000});
//   lockstep::elastic(state, [&](lockstep::ElasticState& state) {        // once a round
//     Net model;
//     lockstep::DistributedDataParallel ddp(model, state.group());
//     torch::optim::AdamW adamw(ddp.parameters(), 1e-3);
//     state.attach(ddp, adamw);                      // takes up what was committed last
//     while (state.step() < 1000) {
//       ddp.zero_grad();
//       loss(model, batch(state.step())).backward();
//       adamw.step();
//       state.commit();                              // one step more
//     }
//   });
//
// A round is a period with a fixed set of ranks. The function is called anew in each: it makes the
// model, the handle and the optimizer on the group of the round, and attach() gives them the newest
// state that all ranks had committed, wherever its parts are, also on another number of ranks and
// under another strategy. A step that was not committed by all is made again; nothing
// else is lost. RANK, WORLD_SIZE and the others are in the environment as they were in the round
// that the process was started for: state.group() is what counts.
//
// `lockstep run --max-restarts N` makes rounds. Under another launcher, or none, there is one
// round, nothing is kept in memory, and the errors of a lost rank are thrown; attach() still goes
// on from the newest checkpoint in `out`. docs/elastic.md says what is lost when.
//
// Memory: each host has two copies of the state (parameters, the optimizer's state, own tensors)
// in files in /dev/shm (or where LOCKSTEP_COMMITS says), whatever the number of ranks and rounds.
// They go with the end of the training or of the agent. On several hosts each has the whole state,
// and any that is left is enough; of buffers in which ranks differ it has those of its lowest rank.
// Where no host has the whole (a model sharded over hosts, ignored tensors) nothing is kept there,
// and the group goes back to its newest checkpoint.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/data/loader_state.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct ElasticOptions {
  InitOptions init = {};  // of each round's group
  // Checkpoints (checkpoint::save()): where, every how many steps (0: never), and how many stay.
  std::filesystem::path out = {};
  std::int64_t save_every = 0;
  std::int64_t keep = 2;
  // How long a rank that has left a round waits for the next one.
  Duration rejoin_timeout = std::chrono::minutes(10);
  // How many ranks compute one copy of the model together, such as those of tensor parallelism:
  // group() has the largest multiple of it that is there, and a mesh on it, such as {{"dp", -1},
  // {"tp", 2}}, has another number of copies in each round. The ranks beyond wait in elastic()
  // until the round ends, and so do all, after a line, where fewer are there (BadInput where no
  // more nodes can come).
  int ranks_of_a_model = 1;
  // Whether the agent may start processes of this program before there is a rank for them
  // (`lockstep run --reserve`): they wait in elastic(), with LibTorch loaded and used once, and
  // take the place of a rank that is lost at once. Until then they have no RANK in their
  // environment; so nothing that the program does before elastic() may depend on it.
  bool reserve = false;
};

// What is committed beside handle, optimizer and random generator.
struct ElasticParts {
  optim::Scheduler* scheduler = nullptr;
  optim::GradScaler* scaler = nullptr;
  // Tensors of the program's own, by name, equal on all ranks (rank 0's are kept): attach() writes
  // into them. The same names, shapes and dtypes in each round.
  std::map<std::string, at::Tensor> tensors = {};
};

// One thread uses it. Calls that are collective are made by all ranks of group(), in the same
// order.
class ElasticState {
 public:
  // InvalidArgument for negative numbers, for save_every without `out`, and for ranks_of_a_model
  // below 1.
  explicit ElasticState(ElasticOptions options = {});
  ~ElasticState();
  ElasticState(const ElasticState&) = delete;
  ElasticState& operator=(const ElasticState&) = delete;

  // The group of this round. These are InvalidArgument outside of elastic()'s function.
  [[nodiscard]] Group& group();
  // From 0; higher by at least one in each later call of the function.
  [[nodiscard]] std::int64_t round() const;

  // Collective, once a round, before the first commit: gives all of them the newest state, be it
  // committed in memory or in a checkpoint of `out`. CommonFailure where that has other tensors:
  // another model has committed it. Random generators go on where they were when there are as many
  // ranks as then.
  // What is passed stays with the caller until the function ends.
  void attach(Handle& handle, torch::optim::Optimizer& optimizer, ElasticParts parts = {});

  // A loader, once a round: it goes on behind the batches that were committed.
  template <typename Loader>
  void attach_loader(Loader& loader) {
    if (const std::string place = loader_place(); !place.empty())
      loader.resume(data::LoaderState::from_text(place));
    set_loader([&loader] { return loader.state().to_text(); });
  }

  // Updates made and committed.
  [[nodiscard]] std::int64_t step() const;
  // The program's own numbers and texts, equal on all ranks; what is written there is committed
  // with the next step, and stands there again after a restart.
  [[nodiscard]] std::map<std::string, double>& numbers();
  [[nodiscard]] std::map<std::string, std::string>& texts();

  // Collective, after each update: counts a step, and keeps the state as it is now. Saves a
  // checkpoint where one is due. Where nodes join or leave, or a rank was lost, it throws what ends
  // the round: let it pass, elastic() catches it.
  void commit();

  // Of the time since the training began, the share that was spent on steps which are in the state:
  // not on restarts, nor on steps that were made again. 1 at the beginning.
  [[nodiscard]] double goodput() const;

 private:
  friend bool elastic(ElasticState& state, const std::function<void(ElasticState&)>& train);

  [[nodiscard]] std::string loader_place() const;
  void set_loader(std::function<std::string()> place);

  struct State;
  const std::unique_ptr<State> state_;
};

// Calls `train` once a round, on every rank of its group, until it has returned on all. Returns
// true then, and false where this process is not wanted any more, because fewer ranks go on or it
// was beyond those of the last group: then end well, and write no results. What `train` throws is
// thrown, but for the errors of the group's end under an agent that makes rounds: PeerLost, Timeout
// and Aborted. BadInput and Timeout as init(); Timeout when no round follows.
bool elastic(ElasticState& state, const std::function<void(ElasticState&)>& train);

}  // namespace lockstep

#pragma GCC visibility pop
