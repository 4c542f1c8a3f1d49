// The ways to train besides TrainedModel's own: --elastic, --local-sgd and --diloco, --strategy dp
// and ps. Each is a TrainedModel in a source of its own; their options are in strategy_options.cc.
// A run without these options needs only make_trained_model().
#pragma once

#include "train/model.h"

#include <lockstep/layout/mesh_layout.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::train {

// Every rank updates what it has. Collective. The configuration outlives the model.
[[nodiscard]] std::unique_ptr<TrainedModel> make_trained_model(const Configuration& configuration,
                                                               const Group& world);

// elastic_strategy.cc: a training whose bits do not depend on the number of ranks
// (lockstep/elastic/slot_gradients.h). Every rank has the whole batch, and computes its slots of
// it, alone or with the ranks of its copy of the model (--mesh tp); it has the whole model, or what
// tensor parallelism and --shard leave it.
[[nodiscard]] std::unique_ptr<TrainedModel> make_elastic(const Configuration& configuration,
                                                         const Group& world);

// own_copies_strategy.cc, --local-sgd and --diloco: each rank trains a copy of its own. At steps
// where the model is measured or saved, the one model of all ranks takes its place in the module:
// the average of the copies, or DiLoCo's outer parameters. That changes nothing of what is trained.
//
// A checkpoint has that one model, and as each rank's own its copy, the state of its optimizer, and
// what averages need. A run on other ranks, or by another strategy, begins with the one model and
// with new states of optimizers.
[[nodiscard]] std::unique_ptr<TrainedModel> make_own_copies(const Configuration& configuration,
                                                            const Group& world);

// served_run.cc, --strategy ps: the first ranks are workers, which train as all ranks do without
// servers, and the last ones keep the parameters and their optimizer. Collective over `world`.
// `train_as` is what a worker does, with its model, in the group of all workers. All ranks return
// the report that it gives.
//
// Checkpoints are those of any run: the servers write their rows of the parameters, as ranks do
// that have divided a model, and worker 0 the rest. So a run may go on with other numbers of
// servers and workers, or without servers.
[[nodiscard]] Report run_on_servers(
    const Configuration& configuration, Group world,
    const std::function<Report(Group workers, TrainedModel& model)>& train_as);

// The options, for declare_options().
void declare_strategy(Settings& settings, Options& options);
void declare_communication(Settings& settings, Options& options);
void declare_elastic(Settings& settings, Options& options);
// BadInput for options of these strategies that do not fit together or this number of ranks.
void check_strategy(const Options& options, int ranks);
// BadInput for options that a model with mixtures of experts cannot have on these axes.
void check_mixtures(const Options& options, const Task& task, const MeshLayout& layout);

// From "bf16+powersgd:2"; BadInput for another text.
[[nodiscard]] HookOptions parse_hook(std::string_view text);
// Null without --hook.
[[nodiscard]] std::shared_ptr<CommunicationHook> hook_of_options(const Options& options);

// Returns true if each rank trains a copy of its own.
[[nodiscard]] inline bool has_own_copies(const Options& options) {
  return options.local_sgd.period > 0 || options.diloco.inner_steps > 0;
}

// The number of ranks that keep parameters with --strategy ps; else 0.
[[nodiscard]] int server_count(const Options& options);
// How many ranks --servers and --workers make together; 1 without them.
[[nodiscard]] int usual_ranks(const Options& options);
// Options::consistency, or what stands for none.
[[nodiscard]] ps::Consistency consistency_of(const Options& options);

// --slots, or the number that stands for 0.
[[nodiscard]] std::int64_t slots_of(const Options& options);
// How many ranks compute one copy of the model together: the product of the axes of --mesh that
// keep their sizes in all rounds; 1 without --mesh.
[[nodiscard]] int ranks_of_a_model(const Options& options);
// The axes of --mesh in a round of this number of ranks: dp and fsdp take the ranks that the others
// leave. If both are there, fsdp has the largest size up to the given one that divides the copies;
// if neither is, dp comes first. Unchanged if the others do not divide the ranks.
[[nodiscard]] std::vector<MeshAxis> axes_of_round(std::vector<MeshAxis> axes, int ranks);
// With the number of slots, and of threads if none is given: a number that does not depend on the
// present number of ranks, because the bits of some operations depend on it.
[[nodiscard]] Options elastic_options(Options options);

}  // namespace lockstep::train
