// SaveLock: allows one writer per name and folder, so that another writer's files are neither
// removed as leftovers of a killed run nor overwritten.
#pragma once

#include "sys/file_lock.h"

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::checkpoint {

class SaveLock {
 public:
  // Locks `folder`/.NAME.lock, then removes partial files of killed writers for which `is_ours` is
  // true. If another writer holds the lock, throws BadInput unless `passes_over_others` is set: the
  // caller then knows that the other writer will not rename its files. Throws SystemError. If a
  // writer on another host might not be visible (a filesystem without locks, or one of several
  // hosts), files that changed during the last day are not removed.
  SaveLock(const std::filesystem::path& folder, const std::string& name,
           const std::function<bool(const std::string&)>& is_ours, bool passes_over_others = false);

 private:
  sys::FileLock lock_;
};

}  // namespace lockstep::checkpoint
