// Nodes of a run that is fixed (may_have_more_rounds() is false): each agent claims the number that
// --node-rank gives it, and waits until all of them have come.
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

// What an agent says while it waits for the agents of other nodes, which may take minutes.

// From a thread of its own: a line after a second, then one every ten, and one when a signal comes
// that asks for the end.
class WaitingLines {
 public:
  // `say` is called from that thread. With `signals`, those of SignalQueue are held back in the
  // calling thread for as long as this lives, and have their ordinary effect after the line.
  WaitingLines(std::function<void(const std::string&)> say, bool signals);
  ~WaitingLines();
  WaitingLines(const WaitingLines&) = delete;
  WaitingLines& operator=(const WaitingLines&) = delete;

  // What is waited for from now on: "node 0 at host-a:29400".
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

// Blocks until all nodes have come, and returns their claims by node rank; keeps `lines` told which
// nodes are missing. Throws BadInput if another agent has the same number, or refuses the run;
// Timeout names the nodes that did not come by the deadline, or node 0 if it does not answer;
// PeerLost: node 0 left. The first text under round_key::result says to all nodes why there will be
// no run.
[[nodiscard]] std::vector<NodeClaim> claim_node_rank(const NodeSpec& spec, TcpStore& store,
                                                     Deadline deadline, WaitingLines& lines);

// For nodes whose calls of node 0's store are not answered.
[[nodiscard]] std::string silence_of_node_0(const NodeSpec& spec);

// Throws BadInput with that text, or with the one that another agent was first to write.
[[noreturn]] void refuse_run(Store& store, int node, const std::string& why);

// An address of this node, node 0, at which the other nodes reach it.
[[nodiscard]] std::string address_for_others(const NodeSpec& spec,
                                             const std::vector<NodeClaim>& claims);

}  // namespace lockstep::launch
