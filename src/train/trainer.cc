#include <lockstep/train/trainer.h>

#include "base/check.h"
#include "train/option_settings.h"
#include "train/run.h"
#include "train/served_run.h"

#include <lockstep/comm/together.h>

#include <utility>

namespace lockstep::train {

namespace {

Report train_by(Task& task, const Options& options, Group world, RunStrategy& strategy) {
  Run run(task, options, std::move(world), strategy);
  while (!run.finished()) {
    run.step();
    if (run.evaluation_is_due()) run.evaluate();
    if (run.sample_is_due()) run.sample();
    run.report();
    if (run.save_is_due()) run.save();
  }
  return run.finish();
}

}  // namespace

Report train(Task& task, const Options& options, Group world) {
  together(world, [&] { check_run(options, task, world.size()); });
  if (options.strategy == "ps")
    return run_on_servers(task, options, std::move(world),
                          [&](Group workers, RunStrategy& strategy) {
                            return train_by(task, options, std::move(workers), strategy);
                          });
  auto strategy = make_local_strategy(options, task, world);
  return train_by(task, options, std::move(world), *strategy);
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
