#include <lockstep/train/trainer.h>

#include "base/check.h"
#include "elastic/round_loop.h"
#include "train/elastic_options.h"
#include "train/option_settings.h"
#include "train/run.h"
#include "train/served_run.h"

#include <lockstep/comm/together.h>

#include <ATen/Parallel.h>

#include <exception>
#include <utility>

namespace lockstep::train {

namespace {

Report train_by(Task& task, const Options& options, Group world, RunStrategy& strategy,
                const RunRound& in = {}) {
  Run run(task, options, std::move(world), strategy, in);
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

}  // namespace

Report train(Task& task, const Options& given, Group world) {
  together(world, [&] { check_run(given, task, world.size()); });
  const Options options = given.elastic ? elastic_options(given) : given;
  if (options.strategy == "ps")
    return run_on_servers(task, options, std::move(world),
                          [&](Group workers, RunStrategy& strategy) {
                            return train_by(task, options, std::move(workers), strategy);
                          });
  auto strategy = make_local_strategy(options, task, world);
  return train_by(task, options, std::move(world), *strategy);
}

std::optional<Report> train_elastically(Task& task, const Options& given,
                                        const std::function<void(const Group&)>& begins) {
  check(given.elastic, "train_elastically: expected Options::elastic");
  std::optional<Report> report;
  bool has_data = false;
  const auto prepare = [&] {
    const Options options = elastic_options(given);
    if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
    try {
      task.load(options, Group());
      has_data = true;
    } catch (const std::exception&) {
      // The round meets it again, and says it.
    }
  };
  const bool is_done = run_rounds({.reserve = true, .prepare = prepare}, [&](Round& round) {
    begins(round.group());
    together(round.group(), [&] { check_run(given, task, round.group().size()); });
    const Options options = elastic_options(given);
    auto strategy = make_local_strategy(options, task, round.group());
    report =
        train_by(task, options, round.group(), *strategy, {.round = &round, .has_data = &has_data});
    if (report->signal != 0) round.leave_unfinished();
  });
  return is_done ? report : std::nullopt;
}

Report train(Task& task, const Options& options, const Mesh& mesh) {
  check(options.mesh.empty(), "train: give a mesh or Options::mesh, not both; found {}",
        options.mesh);
  Options on_mesh = options;
  for (const MeshAxis& axis : mesh.axes())
    on_mesh.mesh += formatted("{}{}={}", on_mesh.mesh.empty() ? "" : ",", axis.name, axis.size);
  return train(task, on_mesh, mesh.group());
}

}  // namespace lockstep::train
