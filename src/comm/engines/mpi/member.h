// One rank's part in one group of the engine mpi.
//
// Collectives of a group are carried out one after the other, in the order of their posts; messages
// each on their own. All of that happens on the progress thread: a rank that has posted may be busy
// elsewhere. Every header carries the fingerprint of its call. In every collective each rank hears
// from the one before it, if only of the call, and a send is complete when the receiver has agreed:
// so calls that differ meet wherever their own messages go.
//
// Invariants:
// - calls_ is touched by any thread; the rest by the progress's alone;
// - dead_ holds exactly from the moment when calls_ is failed by the progress thread; from then on
//   every message is discarded, and no tensor is written but by transfers that are under way.
#pragma once

#include <lockstep/comm/backend.h>

#include "comm/diagnose/failure.h"
#include "comm/diagnose/open_calls.h"
#include "comm/engines/mpi/call_query.h"
#include "comm/engines/mpi/operation.h"
#include "comm/engines/mpi/progress_thread.h"
#include "comm/rendezvous/grace_period.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep::mpi {

class Member final : public MessageHandler, public std::enable_shared_from_this<Member> {
 public:
  // `world_ranks` are the group's ranks in the MPI world; `id` is the group's in all messages.
  Member(ProgressThread& progress, GroupNames group, std::uint64_t id, std::vector<int> world_ranks,
         int rank);
  // Begins to take messages.
  void join();

  [[nodiscard]] const GroupNames& group() const { return group_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::vector<int>& world_ranks() const { return world_ranks_; }

  // As Backend's.
  void post(const Call& call);
  void wait(CallId id);
  [[nodiscard]] bool done(CallId id) { return calls_.done(id); }
  void abort(std::string_view reason);
  // Waits for what was posted, and leaves.
  void leave(const rendezvous::GracePeriod& grace);

  void arrived(Arrival arrival) override;
  void lost(int from, const std::string& how) override;
  void check_progress() override;

 private:
  using Pointer = std::shared_ptr<Operation>;
  // A message as it is waited for.
  struct Key {
    int from = -1;
    Kind kind = Kind::part;
    std::uint64_t number = 0;
    std::uint32_t round = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Awaited {
    Pointer operation;
    std::span<std::byte> memory;
  };
  struct Absence {
    bool has_left = false;
    std::string how;                      // what became of its process
    std::optional<CallRecord> last = {};  // its last collective, when it left
    bool by_exception = false;            // it left while an exception unwound its stack
    // Collectives that it posted before.
    [[nodiscard]] std::uint64_t calls() const { return last ? last->number : 0; }
  };
  struct Claim {  // what a peer said of a call that this rank has not posted yet
    int from = -1;
    std::uint64_t fingerprint = 0;
  };

  void begin(const Pointer& operation);
  void start(const Pointer& operation);
  void enter_round(const Pointer& operation);
  void transfer_done(const Pointer& operation);
  void complete(const Pointer& operation);
  // Starts what has come to the front of the queue.
  void advance();
  void await(const Pointer& operation, Key key, std::span<std::byte> memory);
  void take(const Arrival& arrival, const Awaited& awaited);
  // One of them sends no piece to the other: it says at least that it made the call.
  void tell_next(const Pointer& operation);
  void await_previous(const Pointer& operation);
  void post_to(int rank, Kind kind, std::uint64_t number, std::uint64_t fingerprint,
               std::string_view content, std::uint32_t round = 0);

  void accept(int from, Arrival arrival);
  // Whether the peer's call is ours; otherwise begins to find out what it is.
  bool agrees(int from, const Header& header);
  void answer(int from, const Header& header);
  void take_answer(int from, const Arrival& arrival);
  void ask(CallQuery query);
  void conclude();
  // Nobody waits longer for it, or (a notice) it has taken long.
  void overdue(CallId id, CallQuery::Cause cause, Duration waited);
  void gone(int rank, const Absence& absence);
  void check_gone(const Operation& operation);
  void miss(const Operation& operation, int rank, const Absence& absence);
  void die(const diagnose::FailureReport& report, bool tell);
  [[nodiscard]] int rank_of(int world_rank) const;
  [[nodiscard]] Pointer waiting(CallId id) const;

  ProgressThread& progress_;
  const GroupNames group_;
  const std::uint64_t id_;
  const std::vector<int> world_ranks_;
  const int rank_;
  const int size_;

  diagnose::OpenCalls calls_;

  bool dead_ = false;
  bool advancing_ = false;
  std::deque<Pointer> queue_;           // collectives; the first is under way
  std::map<CallId, Pointer> messages_;  // under way
  std::map<Key, Arrival> unexpected_;   // nobody waits for it yet
  std::map<Key, Awaited> awaited_;
  std::map<CallId, std::vector<Claim>> claims_;
  std::map<int, Absence> gone_;
  std::optional<CallQuery> query_;
  Clock::time_point query_end_{};
};

}  // namespace lockstep::mpi
