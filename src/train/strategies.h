// The strategies other than the default of TrainedModel: --elastic, --local-sgd and --diloco,
// --strategy threads and ps. Each is a TrainedModel; their options are in
// strategy_options.cc. A run without these options needs only make_trained_model().
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

// Makes a model in which every rank updates its own parts. Collective. The configuration must
// outlive the model.
[[nodiscard]] std::unique_ptr<TrainedModel> make_trained_model(const Configuration& configuration,
                                                               const Group& world);

// Defined in local_update_strategy.cc, for --local-sgd and --diloco: each rank trains its own copy.
// At steps where the model is evaluated or saved, the module temporarily has the combined model of
// all ranks: the average of the copies, or DiLoCo's outer parameters. The training itself is not
// affected.
//
// A checkpoint has the combined model and, per rank, its copy, the state of its optimizer, and the
// state of averaging. A run with other ranks, or another strategy, begins with the combined model
// and new optimizer states.
[[nodiscard]] std::unique_ptr<TrainedModel> make_local_update_strategy(
    const Configuration& configuration, const Group& world);

// Defined in served_run.cc, for --strategy ps: the first ranks are workers, which train as in a run
// without servers; the last ranks keep the parameters and their optimizer. Collective over `world`.
// `train_as` runs a worker with its model, in the group of all workers. All ranks return its
// report.
//
// Checkpoints have the usual format: the servers write their rows of the parameters, like ranks
// that shard a model, and worker 0 writes the rest. So a run may continue with other numbers of
// servers and workers, or without servers.
[[nodiscard]] Report run_on_servers(
    const Configuration& configuration, Group world,
    const std::function<Report(Group workers, TrainedModel& model)>& train_as);

// Add the options; called by declare_options().
void declare_strategy(Settings& settings, Options& options);
void declare_communication(Settings& settings, Options& options);
void declare_elastic(Settings& settings, Options& options);
// Throws BadInput for options of these strategies that do not fit together or do not fit this
// number of ranks.
void check_strategy(const Options& options, int ranks);
// Throws BadInput for options that a model with mixtures of experts does not support on these axes.
void check_mixtures(const Options& options, const Task& task, const MeshLayout& layout);

// Parses "bf16+powersgd:2"; throws BadInput for an invalid text.
[[nodiscard]] HookOptions parse_hook(std::string_view text);
// Returns null without --hook.
[[nodiscard]] std::shared_ptr<CommunicationHook> hook_of_options(const Options& options);

// Returns true if each rank trains its own copy.
[[nodiscard]] inline bool has_local_updates(const Options& options) {
  return options.local_sgd.period > 0 || options.diloco.inner_steps > 0;
}

// Returns the number of servers with --strategy ps; otherwise 0.
[[nodiscard]] int server_count(const Options& options);
// Returns the sum of --servers and --workers; 1 without them.
[[nodiscard]] int usual_ranks(const Options& options);
// Returns Options::consistency or its default.
[[nodiscard]] ps::Consistency consistency_of(const Options& options);

// Returns --elastic-micro-batches or its default.
[[nodiscard]] std::int64_t slots_of(const Options& options);
// Returns how many ranks compute one copy of the model together: the product of the axes of --mesh
// that keep their sizes in all rounds, or 1 without --mesh.
[[nodiscard]] int ranks_of_a_model(const Options& options);
// Returns the axes of --mesh for a round with this number of ranks: dp and fsdp share the ranks
// that the other axes leave. If both exist, fsdp gets the largest size up to the given one that
// divides the number of copies; if neither exists, dp is added in front. Returns `axes` unchanged
// if the other axes do not divide the ranks.
[[nodiscard]] std::vector<MeshAxis> axes_of_round(std::vector<MeshAxis> axes, int ranks);
// Returns the options with the number of slots set, and the number of threads if it is not given.
// The number of threads does not depend on the current number of ranks, because the results of some
// operations depend on the number of threads.
[[nodiscard]] Options elastic_options(Options options);

}  // namespace lockstep::train
