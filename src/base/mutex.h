// A mutex that clang checks at compile time (-Wthread-safety). Annotate the data that the mutex
// guards; clang then warns about any access without holding the mutex.
//
//   Mutex mutex_;
//   std::condition_variable changed_;
//   int count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
//   int next() LOCKSTEP_REQUIRES(mutex_) { return count_++; }     // the caller has locked it
//
//   Lock lock(mutex_);
//   changed_.wait(lock.native(), [&]() LOCKSTEP_REQUIRES(mutex_) { return count_ > 0; });
//
// With other compilers it is an ordinary mutex.
#pragma once

#include <mutex>

#if defined(__clang__)
#define LOCKSTEP_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define LOCKSTEP_THREAD_SAFETY(attribute)
#endif

#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_SAFETY(guarded_by(mutex))
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_SAFETY(locks_excluded(__VA_ARGS__))

namespace lockstep {

class LOCKSTEP_THREAD_SAFETY(capability("mutex")) Mutex {
 private:
  friend class Lock;
  std::mutex mutex_;
};

// Holds a mutex during the object's lifetime, except between unlock() and lock().
class LOCKSTEP_THREAD_SAFETY(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) LOCKSTEP_THREAD_SAFETY(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~Lock() LOCKSTEP_THREAD_SAFETY(release_capability()) = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() LOCKSTEP_THREAD_SAFETY(acquire_capability()) { lock_.lock(); }
  void unlock() LOCKSTEP_THREAD_SAFETY(release_capability()) { lock_.unlock(); }

  // Returns the lock for std::condition_variable, which unlocks the mutex while it waits.
  [[nodiscard]] std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace lockstep
