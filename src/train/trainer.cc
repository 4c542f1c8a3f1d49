#include <lockstep/train/trainer.h>

#include "base/check.h"
#include "train/run.h"

#include <utility>

namespace lockstep::train {

Report train(Task& task, const Options& options, Group world) {
  Run run(task, options, std::move(world));
  while (!run.finished()) {
    run.step();
    if (run.evaluation_is_due()) run.evaluate();
    if (run.sample_is_due()) run.sample();
    run.report();
    if (run.save_is_due()) run.save();
  }
  return run.finish();
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
