// Nodes of a fixed run (may_have_more_rounds() is false): each agent claims the number that
// --node-rank gives it and blocks until all nodes have joined.
#pragma once

#include "base/mutex.h"
#include "launch/agent.h"
#include "launch/node_messages.h"
#include "launch/signals.h"
#include "sys/file_descriptor.h"
#include "sys/thread.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/tcp_store.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// Progress lines of an agent that waits for the agents of other nodes, which may take minutes. A
// thread prints a line after one second, then one every ten seconds, and one when a signal arrives
// that requests the end.
class WaitingLines {
 public:
  // Calls `say` from that thread. If `signals`, blocks the signals of SignalQueue in the calling
  // thread during the object's lifetime; such a signal takes its default effect after the line.
  WaitingLines(std::function<void(const std::string&)> say, bool signals);
  ~WaitingLines();
  WaitingLines(const WaitingLines&) = delete;
  WaitingLines& operator=(const WaitingLines&) = delete;

  // Sets the text that names the awaited nodes in the next lines: "node 0 at host-a:29400".
  void wait_for(std::string what);

 private:
  void run();
  void take_signals();
  [[nodiscard]] std::string what() const;

  std::function<void(const std::string&)> say_;
  std::optional<SignalQueue> signals_;
  sys::FileDescriptor end_;
  mutable Mutex mutex_;
  std::string what_ LOCKSTEP_GUARDED_BY(mutex_);
  sys::Thread thread_;
};

// Blocks until all nodes have joined and returns their claims by node rank; shows the missing nodes
// in `lines`. Throws BadInput if another agent has the same number or refuses the run; Timeout,
// which names the nodes that did not join by the deadline, or node 0 if it does not answer;
// PeerLost if node 0 left. If the run is refused, the first text under round_key::result is the
// reason for all nodes.
[[nodiscard]] std::vector<NodeClaim> claim_node_rank(const NodeSpec& spec, TcpStore& store,
                                                     Deadline deadline, WaitingLines& lines);

// Returns the message for nodes that get no answer from node 0's store.
[[nodiscard]] std::string silence_of_node_0(const NodeSpec& spec);

// Publishes `why` as the reason for refusing the run, and throws BadInput with it. If another agent
// has already published a reason, throws with that reason.
[[noreturn]] void refuse_run(Store& store, int node, const std::string& why);

// Returns an address of this node (node 0) that the other nodes can reach.
[[nodiscard]] std::string address_for_others(const NodeSpec& spec,
                                             const std::vector<NodeClaim>& claims);

}  // namespace lockstep::launch
