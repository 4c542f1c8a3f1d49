#include <lockstep/train/trainer.h>

#include "train/run.h"

namespace lockstep::train {

Report train(const Options& options, Group world) {
  Run run(options, std::move(world));
  while (!run.finished()) {
    run.step();
    if (run.evaluation_is_due()) run.evaluate();
    if (run.sample_is_due()) run.sample();
    run.report();
    if (run.save_is_due()) run.save();
  }
  return run.finish();
}

}  // namespace lockstep::train
