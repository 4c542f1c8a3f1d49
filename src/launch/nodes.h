// The other nodes of a run, as this node's agent sees them once all have come together: what it
// hears from them, and what it tells them.
#pragma once

#include "base/mutex.h"
#include "launch/heartbeat_monitor.h"
#include "launch/node_messages.h"
#include "launch/node_rendezvous.h"
#include "sys/file_descriptor.h"
#include "sys/thread.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// Nothing here waits for the network but the constructor, give_up() and the destructor (about a
// second): threads of its own do. One hears the run result, one tells the others that this agent
// lives and watches over the others: all watch node 0, which does not answer when it is stopped,
// and node 0 watches the rest by their heartbeats.
class Nodes {
 public:
  // join_rendezvous()s.
  Nodes(const NodeSpec& spec, int ranks, WaitingLines& lines);
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  [[nodiscard]] const NodeList& node_list() const { return rendezvous_.node_list; }
  [[nodiscard]] const std::string& store_address() const { return rendezvous_.store_address; }
  [[nodiscard]] const std::string& secret() const { return rendezvous_.secret; }
  // "b", "unknown" for a number that no node has.
  [[nodiscard]] std::string host(int node) const;
  // "node 1 (host b)"
  [[nodiscard]] std::string name(int node) const;

  // Says that the run has failed or that it was asked to stop. The first word of all nodes
  // stands.
  void say(const RunResult& run_result);
  // Says that all ranks of this node have ended well. The last node that says so ends the run.
  void say_done();
  // Says why this agent ends, and waits a moment until the others know.
  void give_up(const std::string& why);

  // For poll(): readable when take_run_result() or have_left() may have changed.
  [[nodiscard]] int descriptor() const { return changed_.get(); }
  // The run result, once; also when the store is lost: then it is that node 0 has gone. Node -1: of
  // no node, and `how` says all.
  [[nodiscard]] std::optional<RunResult> take_run_result();
  // From then on this agent waits, where it is node 0, for the others to leave, at most until the
  // deadline.
  void begin_to_leave(Deadline deadline);
  [[nodiscard]] bool have_left() const { return have_left_; }

 private:
  void in_background(std::function<void()> action);
  void listen() noexcept;
  void heartbeat() noexcept;
  void heartbeat_once(HeartbeatMonitor& others);
  void give_up_node_0();
  void write(const RunResult& run_result);
  void object(const std::string& key, const std::string& why) noexcept;
  void pause(Duration time);
  void hear(RunResult run_result);
  void notify() noexcept;

  NodeSpec spec_;
  NodeRendezvous rendezvous_;
  sys::FileDescriptor changed_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> unanswered_ = false;  // node 0 was asked, and no answer came in time
  std::atomic<bool> have_left_ = false;
  Mutex mutex_;
  std::condition_variable closing_changed_;
  bool listening_ LOCKSTEP_GUARDED_BY(mutex_) = true;  // until the result of the run was heard
  std::optional<RunResult> heard_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<sys::Thread> threads_;  // the agent's own thread adds to them
};

}  // namespace lockstep::launch
