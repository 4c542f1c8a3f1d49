// SaveLock: one writer a name and folder: what another one is writing is neither removed as the
// rest of a killed run nor overtaken.
#pragma once

#include "sys/file_lock.h"

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::checkpoint {

class SaveLock {
 public:
  // Takes `folder`/.NAME.lock and then removes what killed writers left there of what `is_ours`
  // holds. BadInput when another one is writing, unless the caller knows that it will not get its
  // name; SystemError. Where a writer on
  // another host may not be seen, on a filesystem without locks or one of several hosts, nothing is
  // removed that was changed during the last day.
  SaveLock(const std::filesystem::path& folder, const std::string& name,
           const std::function<bool(const std::string&)>& is_ours, bool passes_over_others = false);

 private:
  sys::FileLock lock_;
};

}  // namespace lockstep::checkpoint
