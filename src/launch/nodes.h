// The other nodes of a run, as this node's agent sees them once all have come together: what it
// hears from them, and what it tells them.
#pragma once

#include "base/mutex.h"
#include "launch/beats.h"
#include "launch/gathering.h"
#include "launch/roster.h"
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
// second): threads of its own do. One hears the verdict, one tells the others that this agent lives
// and watches over the others: all watch node 0, which does not answer when it is stopped, and node
// 0 watches the rest by their beats.
class Nodes {
 public:
  // gather()s.
  Nodes(const NodeSpec& spec, int ranks, WaitingLines& lines);
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  [[nodiscard]] const Roster& roster() const { return gathering_.roster; }
  [[nodiscard]] const std::string& store_address() const { return gathering_.store_address; }
  [[nodiscard]] const std::string& secret() const { return gathering_.secret; }
  // "b", "unknown" for a number that no node has.
  [[nodiscard]] std::string host(int node) const;
  // "node 1 (host b)"
  [[nodiscard]] std::string name(int node) const;

  // Says that the run has failed or that it was asked to stop. The first word of all nodes
  // stands.
  void say(const Verdict& verdict);
  // Says that all ranks of this node have ended well. The last node that says so ends the run.
  void say_done();
  // Says why this agent ends, and waits a moment until the others know.
  void give_up(const std::string& why);

  // For poll(): readable when take_verdict() or have_left() may have changed.
  [[nodiscard]] int descriptor() const { return changed_.get(); }
  // The verdict, once; also when the store is lost: then it is that node 0 has gone. Node -1: of no
  // node, and `how` says all.
  [[nodiscard]] std::optional<Verdict> take_verdict();
  // From then on this agent waits, where it is node 0, for the others to leave, at most until the
  // deadline.
  void begin_to_leave(Deadline deadline);
  [[nodiscard]] bool have_left() const { return have_left_; }

 private:
  void in_background(std::function<void()> action);
  void listen() noexcept;
  void beat() noexcept;
  void beat_once(Beats& others);
  void give_up_node_0();
  void write(const Verdict& verdict);
  void object(const std::string& key, const std::string& why) noexcept;
  void pause(Duration time);
  void hear(Verdict verdict);
  void notify() noexcept;

  NodeSpec spec_;
  Gathering gathering_;
  sys::FileDescriptor changed_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> unanswered_ = false;  // node 0 was asked, and no answer came in time
  std::atomic<bool> have_left_ = false;
  Mutex mutex_;
  std::condition_variable closing_changed_;
  bool listening_ LOCKSTEP_GUARDED_BY(mutex_) = true;  // until a verdict was heard
  std::optional<Verdict> heard_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<sys::Thread> threads_;  // the agent's own thread adds to them
};

}  // namespace lockstep::launch
