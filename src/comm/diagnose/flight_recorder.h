// The flight recorder: the last calls of this rank on all groups that came from one init(), kept in
// memory and written as a file when a group fails, for `lockstep report hang`.
//
// Invariants:
//   - Slots are allocated once. Noting a call takes no lock, allocates nothing and makes no system
//     call; threads of different groups write different slots.
//   - A slot's number is 0 while its fields are being written, so a reader that saw the same number
//     before and after has read one call. Numbers begin at 1 and only grow.
//   - Groups and failures are guarded by mutex_, and so is the file.
#pragma once

#include <lockstep/comm/call.h>

#include "base/mutex.h"
#include "sys/shared_memory.h"
#include "sys/timestamp_counter.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::diagnose {

// How far a call has come, as its rank knows.
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

// A slot as it is read.
struct FlightEntry {
  std::uint64_t number = 0;  // of all calls of this rank
  std::uint32_t group = 0;
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  std::optional<DType> dtype;
  int root = -1;
  std::uint32_t line = 0;
  std::uint64_t sequence = 0;
  std::int64_t elements = 0;
  std::uint64_t counts = 0;
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  Progress progress = Progress::posting;
  const char* file = "";
  std::string tag;
};

// The header of the file, written once at its top.
struct FlightHeader {
  int rank = 0;
  int size = 1;
  std::string engine;
  std::string folder;  // where the file goes; empty: it is written only when asked for
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
  [[nodiscard]] std::vector<FlightEntry> entries() const;
  [[nodiscard]] std::string json_locked() const LOCKSTEP_REQUIRES(mutex_);
  std::string write_locked(const std::string& folder) const LOCKSTEP_REQUIRES(mutex_);

  const FlightHeader header_;
  const sys::TimestampScale scale_;
  const std::unique_ptr<FlightSlot[]> slots_ = std::make_unique<FlightSlot[]>(kept);
  std::atomic<std::uint64_t> last_{0};

  Mutex mutex_;
  std::vector<RecordedGroup> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<EndedGroup> ended_ LOCKSTEP_GUARDED_BY(mutex_);  // in the order of their ends
};

}  // namespace lockstep::diagnose
