// The only thread of a process that calls MPI. It sends and receives for all groups and executes
// their rounds, so operations progress while the posting threads are busy.
//
// Invariants:
// - Only this thread calls MPI and accesses the members of the progress thread; other threads only
//   give it tasks.
// - The memory of a transfer is kept alive (`keep`) until MPI has completed the transfer, even if
//   the group fails: MPI cannot cancel a send.
// - All content that arrives is received, even if it is then discarded, so that a group that failed
//   here leaves no peer's send pending.
#pragma once

#include "base/mutex.h"
#include "comm/backends/mpi/plugin/functions.h"
#include "sys/process_info.h"
#include "sys/thread.h"

#include <lockstep/base/deadline.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep::mpi {

// The header of every message between two ranks of the backend mpi.
//
// One MPI message carries the header and, if the content is short, the content behind it. A longer
// content follows as a separate message under `tag`; the receiver takes that message when it knows
// its destination buffer. All ranks of a world run the same program on the same architecture, so
// numbers are sent in native byte order.
enum class Kind : std::uint32_t {
  collective,  // data of one round of a collective
  message,     // data of send() and recv()
  failed,      // the group has failed; the content is the reason
  left,        // the sender has completed its calls and leaves the group
  goodbye      // the sender's process needs no peer any more
};

struct Header {
  std::uint64_t group = 0;        // fingerprint of its name
  std::uint64_t number = 0;       // of the collective in its group, or of the message in its pair
  std::uint64_t fingerprint = 0;  // of the call
  std::uint64_t bytes = 0;        // of the content
  std::uint64_t awaited = 0;      // uneven all_to_all: bytes that the sender expects
  Kind kind = Kind::collective;
  std::uint32_t round = 0;
  std::int32_t tag = 0;  // 0: the content is in this message
  std::uint32_t unused = 0;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 56);

// Contents up to this size travel with the header.
inline constexpr std::size_t eager_limit = 4096;
inline constexpr std::size_t envelope_bytes = sizeof(Header) + eager_limit;

// A message whose header has arrived. The content came with the header or is still at the sender.
struct Arrival {
  int from = -1;  // rank of the MPI world
  Header header;
  std::vector<std::byte> content;  // if header.tag is 0
};

// Handles the messages of one group. The progress thread calls it; its functions must not throw.
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  virtual void arrived(Arrival arrival) = 0;
  // Called when the rank `from` is lost; -1 means that MPI itself has failed. `how`: the reason.
  virtual void lost(int from, const std::string& how) = 0;
};

class ProgressThread {
 public:
  // Returns the progress thread of this process. The first call initialises MPI unless the program
  // has done so, and the thread runs until the process ends. Throws BadInput if there is no MPI
  // implementation, or if the program has called MPI_Finalize().
  static ProgressThread& open();

  ProgressThread();
  // Waits until all ranks of the world are about to end, as MPI_Finalize does. Waits only a few
  // seconds for suspected ranks; if they do not come, MPI is not finalised.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  [[nodiscard]] int rank() const { return world_.rank; }
  [[nodiscard]] int size() const { return world_.size; }
  [[nodiscard]] std::string library() const { return world_.library; }

  // Thread-safe. Returns a number that is equal on all ranks if they call it equally often.
  [[nodiscard]] std::uint64_t next_bootstrap() { return ++bootstraps_; }
  // Thread-safe. The progress thread runs the tasks in the order of the calls.
  void give(std::function<void()> task);

  // The functions below are called by the progress thread only.

  using Done = std::function<void()>;
  // Sends to a rank of the MPI world; header.bytes and header.tag are filled in. Done is called
  // when `content` may be used again.
  void send(int to, Header header, std::span<const std::byte> content,
            std::shared_ptr<const void> keep, Done done);
  // Receives the content of an arrival into `to`, which must have room for header.bytes.
  void fetch(const Arrival& arrival, std::byte* to, std::shared_ptr<const void> keep, Done done);
  void discard(const Arrival& arrival);

  // Passes messages for `group` to `handler` from now on, including messages that arrived earlier.
  void attach(std::uint64_t group, std::shared_ptr<MessageHandler> handler);
  // Discards messages for `group` from now on.
  void detach(std::uint64_t group);
  // Watches the process of `rank`, if it runs on this host.
  void watch(int rank, std::string_view identity);
  // Adds `operations` (may be negative) to the operations that wait for messages: the more there
  // are, the more often the thread polls.
  void expect(int operations) { expected_ += operations; }
  // Notes that a group of `rank` failed: that rank may never reach its shutdown, unless a message
  // from it arrives from now on.
  void suspect(int rank) {
    if (!departed_.contains(rank)) suspected_.insert(rank);
  }

 private:
  struct Envelope {  // a posted receive for a header from any rank
    lockstep_mpi_request request{};
    std::vector<std::byte> memory;
  };
  struct Moving {  // a running send or receive
    int peer = -1;
    std::vector<lockstep_mpi_request> requests;
    std::vector<std::byte> memory;  // of a header and its short content
    std::shared_ptr<const void> keep;
    Done done;
  };

  void begin();
  void run();
  // Called in the program's MPI_Finalize(), by its thread. Fails the groups that still exist, and
  // waits as the destructor does. The progress thread makes no MPI call afterwards.
  void end_before_mpi();
  // Leaves MPI, if it still works, and logs an error.
  void leave();
  bool run_tasks();
  bool take_headers();
  bool take_finished();
  void deliver(Arrival arrival);
  void check_processes();
  // Notes that MPI cannot reach `rank`. The end of its process may soon explain why.
  void note_unreachable(int rank, int code);
  void note_lost(int rank, const std::string& how);
  void backoff(int idle_rounds);
  // Fails every group, because MPI itself failed or was misused.
  void fail_all(const std::string& why);
  // Fails every group that exists. Their members discard all further messages.
  void end_groups(const std::string& why);
  void finalize();
  [[nodiscard]] bool is_everyone_leaving() const;
  void check(int code, const char* what) const;
  [[nodiscard]] std::string explained(int code) const;
  Moving& begin_moving(int peer);
  // Sends messages longer than MPI's limit in pieces under one tag, which preserves their order.
  template <class Start>
  void start_pieces(Moving& moving, std::size_t bytes, Start start);
  // Returns true if the transfer has completed or MPI has given it up.
  bool is_over(Moving& moving);

  const lockstep_mpi_functions* mpi_ = nullptr;
  lockstep_mpi_world world_{};

  std::atomic<std::uint64_t> bootstraps_ = 0;
  std::atomic<bool> has_ended_ = false;  // by the program's MPI_Finalize()
  Mutex mutex_;
  std::condition_variable given_;
  std::deque<std::function<void()>> tasks_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;

  std::deque<Envelope> envelopes_;  // in the order in which MPI fills them
  std::list<Moving> moving_;
  std::vector<std::int32_t> next_tags_;  // by destination
  std::map<std::uint64_t, std::shared_ptr<MessageHandler>> handlers_;
  std::map<std::uint64_t, std::vector<Arrival>> early_;  // for groups that do not exist here yet
  // The groups that ended last, as a set and in the order of their ends: their late messages are
  // discarded.
  std::set<std::uint64_t> detached_;
  std::deque<std::uint64_t> order_of_ends_;
  sys::PeerProcesses processes_;
  struct Trouble {
    std::string what;
    Clock::time_point since;
  };
  std::map<int, Trouble> unreachable_;
  std::map<int, std::string> lost_;  // and how
  std::set<int> departed_;           // have sent goodbye
  std::set<int> suspected_;          // see suspect()
  Clock::time_point last_look_{};
  int expected_ = 0;
  bool parting_ = false;
  std::string broken_;  // why MPI cannot be used any more

  sys::Thread thread_;  // last: uses the members above
};

}  // namespace lockstep::mpi
