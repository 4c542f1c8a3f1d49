// The flight recorder: the last calls of this rank on all groups that came from one init(), kept in
// memory and written as a file when a group fails, for `lockstep report hang`.
//
// Invariants:
//   - Slots are allocated once. Noting a call takes no lock, allocates nothing and makes no system
//     call; threads of different groups write different slots.
//   - A slot's number is 0 while its fields are being written, so a reader that saw the same number
//     before and after has read one call. Numbers begin at 1 and only grow.
//   - Groups and failures are guarded by mutex_, and so is the file.
//
// The file is JSON, read by `lockstep report hang` (src/apps/report).
//
//   {"lockstep_flight_record": 1, "rank": 2, "size": 4, "backend": "shm", "host": "a", "pid": 71,
//    "streams": false, "written": 1732204862.125, "calls_ever": 5120,
//    "groups": [{"name": "world", "members": [0, 1, 2, 3],
//                "failure": "...", "failed": 1732204862.1}],
//    "calls": [{"number": 4097, "group": 0, "call": "all_reduce", "sequence": 417, "op": "sum",
//               "dtype": "float32", "elements": 3145728, "bytes": 12582912, "tag": "bucket 2",
//               "posted": 1732204852.0, "ended": 1732204852.1, "progress": "done",
//               "where": "trainer.cc:88"}]}
//
// Times are seconds since 1970. Some members are optional: `root` for rooted operations, `peer` for
// messages, `op` for reductions, `dtype`, `elements` and `bytes` for calls with a tensor, `counts`
// (a hash) for uneven sizes, `ended` once the rank has waited for the call. `progress` is posting
// (the post has not returned), posted (the rank went on), waiting, done, failed or refused. Calls
// are in the order of their posts.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/call.h>

#include "base/mutex.h"
#include "sys/shared_memory.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::diagnose {

// The processor's timestamp counter: the cheapest clock, for timestamps that are converted to times
// only when they are read.

// Returns the counter, which runs at a constant rate on all cores. Takes about ten nanoseconds,
// without a system call.
[[nodiscard]] inline std::uint64_t timestamp() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
#endif
}

// Converts timestamps to times. Measures the counter's rate over the object's own lifetime, so
// conversions of timestamps from that period are exact.
class TimestampScale {
 public:
  using WallClock = std::chrono::system_clock;

  // Returns the wall-clock time of a timestamp, in seconds since 1970.
  [[nodiscard]] double seconds_of(std::uint64_t stamp) const {
    auto now_stamp = timestamp();
    auto age = std::chrono::duration<double>(Clock::now() - begin_).count();
    auto now = std::chrono::duration<double>(WallClock::now().time_since_epoch()).count();
    auto per_count =
        now_stamp > begin_stamp_ ? age / static_cast<double>(now_stamp - begin_stamp_) : 0.0;
    return now - static_cast<double>(static_cast<std::int64_t>(now_stamp - stamp)) * per_count;
  }

 private:
  std::uint64_t begin_stamp_ = timestamp();
  Clock::time_point begin_ = Clock::now();
};

// The progress of a call, as known to its rank.
enum class Progress : std::uint8_t { posting, posted, waiting, done, failed, refused };

struct alignas(128) FlightSlot {
  std::atomic<std::uint64_t> number{0};
  std::atomic<std::uint64_t> kind{0};      // group, collective, op, dtype
  std::atomic<std::uint64_t> place{0};     // root and line
  std::atomic<std::uint64_t> sequence{0};  // of the group's collectives, or of this pair's messages
  std::atomic<std::uint64_t> elements{0};
  std::atomic<std::uint64_t> counts{0};  // a hash of uneven counts, 0 for none
  std::atomic<std::uint64_t> posted{0};  // timestamps
  std::atomic<std::uint64_t> done{0};    // timestamps of the end of the wait
  std::atomic<std::uint64_t> progress{0};
  std::atomic<const char*> file{nullptr};
  sys::SharedText<6> tag;
};
static_assert(sizeof(FlightSlot) == 128);

// The header of the file, written once at its top.
struct FlightHeader {
  int rank = 0;
  int size = 1;
  std::string backend;
  bool streams = false;  // calls run on streams of a device, in the order of their posts
  std::string folder;    // where the file goes; empty: it is written only when asked for
};

struct RecordedGroup {
  std::string name;
  std::vector<int> members;  // ranks of the world, in the group's order
  std::string failure = {};  // the sentence of its end
  double failed = 0;         // seconds since 1970
};

class FlightRecorder {
 public:
  static constexpr std::size_t kept = 1024;

  explicit FlightRecorder(FlightHeader header);

  [[nodiscard]] std::uint32_t add_group(std::string name, std::vector<int> members);
  // Notes that the group makes no more calls. Unless the group has failed, its number is given to
  // another group once the record keeps no call of it.
  void end_group(std::uint32_t group) noexcept;

  // Any thread, one per group at a time. Returns the number of the entry, which is never 0.
  std::uint64_t note_post(std::uint32_t group, const CallInfo& call);
  void note_posted(std::uint64_t number);
  void note_wait(std::uint64_t number);
  void note_end(std::uint64_t number, Progress progress);

  // Notes that a group has failed, with the sentence that its first caller got, and writes the
  // file. Never throws.
  void note_failure(std::uint32_t group, std::string_view sentence) noexcept;
  // Returns the text that write() would write now.
  [[nodiscard]] std::string json();
  // Writes the record into `folder` and returns the file's path. Throws SystemError if that fails;
  // an existing file then stays as it was.
  std::string write(const std::string& folder);
  [[nodiscard]] const FlightHeader& header() const { return header_; }

 private:
  struct EndedGroup {
    std::uint32_t group;
    std::uint64_t last;  // the number of the last call before it ended
  };
  [[nodiscard]] FlightSlot& slot(std::uint64_t number) const { return slots_[number % kept]; }
  [[nodiscard]] std::string json_locked() const LOCKSTEP_REQUIRES(mutex_);
  std::string write_locked(const std::string& folder) const LOCKSTEP_REQUIRES(mutex_);

  const FlightHeader header_;
  const TimestampScale scale_;
  const std::unique_ptr<FlightSlot[]> slots_ = std::make_unique<FlightSlot[]>(kept);
  std::atomic<std::uint64_t> last_{0};

  Mutex mutex_;
  std::vector<RecordedGroup> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<EndedGroup> ended_ LOCKSTEP_GUARDED_BY(mutex_);  // in the order of their ends
};

}  // namespace lockstep::diagnose
