// The one thread of a process that calls MPI: it sends and receives for all groups, runs their
// steps, and so needs no attention of the threads that posted.
//
// Invariants:
// - MPI, and everything under "the progress thread", is touched by that thread alone; others only
//   hand it tasks.
// - Memory given to a transfer stays alive (`keep`) until MPI says that it is done, whatever
//   becomes of the group: MPI cannot take back what was sent.
// - Every content that arrives is received, if only to be thrown away: no peer's send is left
//   pending by a group that died here.
#pragma once

#include "base/mutex.h"
#include "comm/engines/mpi/plugin/functions.h"
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

// The header of every message between two ranks of the engine mpi.
//
// One MPI message carries the header and, if the content is short, the content behind it. A longer
// content follows as a separate message under `tag`; the receiver takes that message when it knows
// its destination buffer. All ranks of a world run the same program on the same architecture, so
// numbers are sent in native byte order.
enum class Kind : std::uint32_t {
  collective,  // a piece of a collective's round
  message,     // the same of send() and recv()
  failed,      // the group is dead: why the sender closed it
  left,        // the sender has completed its calls and leaves the group
  goodbye      // the sender's process needs no other any more
};

struct Header {
  std::uint64_t group = 0;        // fingerprint of its name
  std::uint64_t number = 0;       // of the collective in its group, or of the message in its pair
  std::uint64_t fingerprint = 0;  // of the call
  std::uint64_t bytes = 0;        // of the content
  std::uint64_t awaited = 0;      // in return, in an all_to_all with counts
  Kind kind = Kind::collective;
  std::uint32_t round = 0;
  std::int32_t tag = 0;  // 0: the content follows at once
  std::uint32_t unused = 0;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 56);

// Contents up to this size travel with the header.
inline constexpr std::size_t eager_limit = 4096;
inline constexpr std::size_t envelope_bytes = sizeof(Header) + eager_limit;

// A message whose header has arrived; its content lies here or waits at the sender.
struct Arrival {
  int from = -1;  // rank of the MPI world
  Header header;
  std::vector<std::byte> content;  // when header.tag is 0
};

// Handles the messages of one group. The progress thread calls it; its functions must not throw.
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  virtual void arrived(Arrival arrival) = 0;
  // Called when the rank `from` is gone; -1 means that MPI itself has failed. `how` says why.
  virtual void lost(int from, const std::string& how) = 0;
};

class ProgressThread {
 public:
  // Returns the progress thread of this process. The first call initialises MPI, and the thread
  // runs until the process ends. Throws BadInput if there is no MPI implementation.
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

  // Any thread. Returns a number that is equal on all ranks if they call equally often.
  [[nodiscard]] std::uint64_t next_bootstrap() { return ++bootstraps_; }
  // Any thread. The progress thread runs the tasks in the order of the calls.
  void give(std::function<void()> task);

  // The rest is called by the progress thread only.

  using Done = std::function<void()>;
  // Sends to a rank of the MPI world; header.bytes and header.tag are filled in. Done is called
  // when `content` may be used again.
  void send(int to, Header header, std::span<const std::byte> content,
            std::shared_ptr<const void> keep, Done done);
  // Fetches the content of an arrival into `to`, which has room for header.bytes.
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
  struct Envelope {  // a receive that waits for anybody's header
    lockstep_mpi_request request{};
    std::vector<std::byte> memory;
  };
  struct Moving {  // a send or a receive under way
    int peer = -1;
    std::vector<lockstep_mpi_request> requests;
    std::vector<std::byte> memory;  // of a header and its short content
    std::shared_ptr<const void> keep;
    Done done;
  };

  void begin();
  void run();
  bool run_tasks();
  bool take_headers();
  bool take_finished();
  void deliver(Arrival arrival);
  void check_processes();
  // Notes that MPI cannot reach `rank`; the state of its process may soon tell why.
  void note_unreachable(int rank, int code);
  void note_lost(int rank, const std::string& how);
  void rest(int idle_rounds);
  // Fails every group, because MPI itself failed or was misused.
  void break_down(const std::string& why);
  void part();
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
  Mutex mutex_;
  std::condition_variable given_;
  std::deque<std::function<void()>> tasks_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;

  std::deque<Envelope> envelopes_;  // in the order in which MPI fills them
  std::list<Moving> moving_;
  std::vector<std::int32_t> next_tags_;  // by destination
  std::map<std::uint64_t, std::shared_ptr<MessageHandler>> handlers_;
  std::map<std::uint64_t, std::vector<Arrival>> early_;  // for groups that are not there yet
  // The groups that ended last, in the order of their ends too: what is still to come for them is
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
  std::set<int> departed_;           // that said goodbye
  std::set<int> suspected_;          // see suspect()
  Clock::time_point last_look_{};
  int expected_ = 0;
  bool parting_ = false;
  std::string broken_;  // why nothing moves any more

  sys::Thread thread_;  // last: it uses what is above
};

}  // namespace lockstep::mpi
