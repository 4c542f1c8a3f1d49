#include "checkpoint/save_lock.h"

#include "base/check.h"
#include "checkpoint/folders.h"

#include <chrono>

namespace lockstep::checkpoint {

SaveLock::SaveLock(const std::filesystem::path& folder, const std::string& name,
                   const std::function<bool(const std::string&)>& is_ours, bool passes_over_others)
    : lock_(folder / formatted(".{}.lock", name)) {
  using State = sys::FileLock::State;
  check_input(passes_over_others || lock_.state() != State::busy,
              "{}: {} is saving here: only one may save at a time, and all ranks that have a part "
              "of the model must save together",
              folder.string(), lock_.about());
  const auto least_age = lock_.reaches_everybody() ? std::chrono::hours(0) : std::chrono::hours(24);
  remove_partial(folder, is_ours, least_age);
}

}  // namespace lockstep::checkpoint
