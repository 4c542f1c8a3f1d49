// How a run saves, and what becomes of it where the disk refuses.
#include "base/format.h"
#include "train/run.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/together.h>

namespace lockstep::train {

bool Run::may_fail(const std::function<void()>& action) {
  if (options_.on_save_error == "stop") {
    action();
    return true;
  }
  try {
    action();
    return true;
  } catch (const CommonFailure& failure) {
    if (world_.is_root())
      progress_.say(formatted("not saved, and the run goes on: {}", failure.what()));
    return false;
  }
}

void Run::save() {
  auto began = Pace::Clock::now();
  // What was being written may have failed; this one may succeed all the same.
  if (saver_) (void)may_fail([&] { saver_->wait(); });
  (void)may_fail([&] { save_now(); });
  pace_.leave_out(began);
}

void Run::save_now() {
  const checkpoint::SaveOptions how{.keep = options_.keep,
                                    .description = description(std::nullopt, false),
                                    .own = strategy_.own()};
  if (saver_)
    saver_->save(options_.out, strategy_.handle(), *strategy_.optimizer(), state(), how);
  else
    strategy_.save(options_.out, state(), how);
  saved_step_ = step_;
}

// The last checkpoint is on the disk, or the run fails.
void Run::finish_saving() {
  const bool was_tried = saved_step_ == step_;
  if (!was_tried && saver_) (void)may_fail([&] { saver_->wait(); });
  if (!was_tried) save_now();
  if (saver_) saver_->wait();
}

}  // namespace lockstep::train
