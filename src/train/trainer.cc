#include <lockstep/train/trainer.h>

#include "base/check.h"
#include "elastic/round_loop.h"
#include "train/configuration.h"
#include "train/device.h"
#include "train/interrupt.h"
#include "train/option_table.h"
#include "train/run.h"
#include "train/strategies.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <ATen/Parallel.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep::train {

namespace {

Report to_the_end(Run& run) {
  run.make_up();
  while (!run.finished()) {
    run.step();
    if (run.evaluation_is_due()) run.evaluate();
    if (run.sample_is_due()) run.sample();
    run.report();
    if (run.save_is_due()) run.save();
    run.commit();
  }
  return run.finish();
}

// Trains with one model. If all ranks fail together, the groups of the run and its model are
// destroyed normally first, so that no group counts as left by an exception.
Report train_by(const Configuration& configuration, Group world, TrainedModel& model,
                const RunRound& in = {}) {
  std::optional<Run> run(std::in_place, configuration, std::move(world), model, in);
  try {
    return to_the_end(*run);
  } catch (const CollectiveFailure&) {
    run.reset();
    throw;
  }
}

Report train_locally(const Configuration& configuration, const Group& world,
                     const RunRound& in = {}) {
  auto model = make_trained_model(configuration, world);
  try {
    return train_by(configuration, world, *model, in);
  } catch (const CollectiveFailure&) {
    model.reset();
    throw;
  }
}

}  // namespace

Report train(Configuration& configuration, Group world) {
  Options& options = configuration.options;
  run_on_all_or_fail(world, [&] { check_run(configuration, world.size()); });
  if (options.elastic) options = elastic_options(options);
  if (options.strategy == StrategyKind::ps)
    return run_on_servers(configuration, std::move(world), [&](Group workers, TrainedModel& model) {
      return train_by(configuration, std::move(workers), model);
    });
  return train_locally(configuration, world);
}

std::optional<Report> train_elastically(Configuration& configuration,
                                        const std::function<void(const Group&)>& begins) {
  Options& given = configuration.options;
  check(given.elastic, "train_elastically: expected Options::elastic");
  std::optional<Report> report;
  bool has_data = false;
  std::int64_t begun = 0;
  const auto prepare = [&] {
    const Options options = elastic_options(given);
    if (options.threads > 0) at::set_num_threads(options.threads);
    try {
      configuration.task().load(options, Group());
      has_data = true;
    } catch (const std::exception&) {
      // The error is rethrown and reported in the round.
    }
  };
  const int of_a_model = ranks_of_a_model(given);
  const LoopOptions loop{.init = {.device = device_for_init(given)},
                         .hot_spares = true,
                         .ranks_wanted = [&](int there) { return there / of_a_model * of_a_model; },
                         // It must end together with the others, which save first.
                         .while_waiting = [] { return std::make_shared<Interrupt>(); },
                         .prepare = prepare};
  const bool is_done = run_rendezvous_rounds(loop, [&](Round& round) {
    begins(round.group());
    run_on_all_or_fail(round.group(), [&] { check_run(configuration, round.group().size()); });
    given = elastic_options(given);
    report = train_locally(configuration, round.group(),
                           {.round = &round, .has_data = &has_data, .begun = &begun});
    if (report->signal != 0) round.leave_unfinished();
  });
  return is_done ? report : std::nullopt;
}

Report train(Task& task, const Options& options, Group world) {
  Configuration configuration(task, options);
  return train(configuration, std::move(world));
}

std::optional<Report> train_elastically(Task& task, const Options& options,
                                        const std::function<void(const Group&)>& begins) {
  Configuration configuration(task, options);
  return train_elastically(configuration, begins);
}

Report train(Task& task, const Options& options, const Mesh& mesh) {
  check(options.mesh.empty(), "train: give a mesh or Options::mesh, not both; found {}",
        mesh_text(options.mesh));
  Options on_mesh = options;
  on_mesh.mesh = mesh.axes();
  return train(task, on_mesh, mesh.group());
}

}  // namespace lockstep::train
