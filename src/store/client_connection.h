// The connection of a TcpStore, which many threads use. One of the threads that wait for replies
// reads for all of them.
#pragma once

#include "base/mutex.h"
#include "store/handshake.h"
#include "store/wire.h"
#include "sys/file_descriptor.h"
#include "sys/own_process.h"
#include "sys/shared_memory.h"
#include "sys/socket_address.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/store/tcp_store.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

namespace store {

// A call of TcpStore that waits for its reply. The caller sleeps on this object; other threads wake
// it. The caller and the thread that wakes it share the object, because that thread may still use
// it for a moment after the caller is done. Wakes can be spurious.
class WaitingCall {
 public:
  explicit WaitingCall(std::string message) : request(std::move(message)) {}

  // Called once by the reading thread.
  void answer(Message reply) {
    reply_ = std::move(reply);
    is_answered_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool is_answered() const { return is_answered_.load(std::memory_order_acquire); }
  // Called once by the caller, after the reply has arrived.
  [[nodiscard]] Message take_reply() { return std::move(reply_); }

  // The caller calls wakes(), then checks its conditions, then sleeps; sleep() returns at once if
  // wake() was called since wakes().
  [[nodiscard]] std::uint32_t wakes() const { return wakes_.load(std::memory_order_acquire); }
  void sleep(std::uint32_t seen_wakes, Deadline deadline) const {
    sys::futex_wait(wakes_, seen_wakes, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
  void wake() {
    wakes_.fetch_add(1, std::memory_order_release);
    sys::futex_wake_all(wakes_);
  }

  // The members below are guarded by the connection's mutex.
  std::string request;   // encoded; kept after it was sent only if reconnecting is enabled
  bool is_sent = false;  // on the current connection
  bool reads = false;    // the caller reads for all; only the caller changes it

  // True while it is this caller's turn to send the requests of all callers. Changed under the
  // connection's mutex.
  std::atomic<bool> sends = false;

 private:
  Message reply_;
  std::atomic<bool> is_answered_ = false;
  std::atomic<std::uint32_t> wakes_ = 0;
};

}  // namespace store

// `sending_` also guards all writes to the socket. `mutex_` may be locked while `sending_` is held,
// never the other way round. Only the thread that has set `reading_` receives, and only that thread
// reconnects, while it holds `sending_`. Once `lost_` is set it never changes: the socket is shut
// down, and every call throws.
//
// If several callers start requests at the same time, one caller sends the requests of all in one
// write: the caller whose `sends` flag is set. `is_sent_for_` is true meanwhile. The other callers
// sleep until they have their replies, each on its own futex, and lock no mutex when they wake.
class TcpStore::Connection {
 public:
  explicit Connection(const TcpStoreOptions& options);
  ~Connection();

  // Sends a request and blocks until its reply, which has Code::done. Throws Timeout at the
  // deadline, or if the server reports that keys are missing, and BadInput if the server refuses
  // the request.
  store::Message call(store::Message request, Deadline deadline);
  // Same for a request that does not block on the server: the deadline is that of the options.
  store::Message call(store::Message request);
  // Like call(), for a request that every later connection also begins with, even a connection that
  // is made before the reply arrives. If the request fails, restores the previous request for the
  // same key.
  void call_on_each_connection(store::Message request);

  // Makes every call throw from now on, including calls that wait.
  void lose(const std::string& reason) noexcept;

  [[nodiscard]] std::string own_address() const;
  [[nodiscard]] std::int64_t made() const { return made_; }
  // Returns true in a forked child, which has a copy of this object.
  [[nodiscard]] bool is_copy_of_parent() const { return process_.is_copy_of_parent(); }

 private:
  using Call = std::shared_ptr<store::WaitingCall>;

  void connect(Deadline deadline);
  // Sets the request that every later connection sends for `key`; returns the previous one.
  std::optional<std::string> keep(const std::string& key, std::optional<std::string> message);
  void try_once(Deadline deadline);
  void begin_session(store::FrameReader& frames, Deadline deadline) LOCKSTEP_REQUIRES(sending_);
  void repair(Deadline deadline);
  void send_again() LOCKSTEP_REQUIRES(sending_);
  Call begin(std::uint64_t id, std::string request);
  void send_for_all(store::WaitingCall& own);
  [[nodiscard]] bool hand_over_sending() LOCKSTEP_REQUIRES(mutex_);
  void send_outbox();
  [[nodiscard]] std::vector<std::string> take_outbox();
  void send_frames(const std::vector<std::string>& messages, bool is_reader = false)
      LOCKSTEP_REQUIRES(sending_);
  store::Message wait_for_reply(std::uint64_t id, store::WaitingCall& own, Deadline deadline);
  store::Message take_reply(store::WaitingCall& own);
  enum class Next { leave, read, sleep };
  [[nodiscard]] Next next_of(store::WaitingCall& own, Deadline deadline);
  store::Message leave(std::uint64_t id, store::WaitingCall& own);
  void read_or_repair(Deadline deadline);
  // read_if_nobody_does() and read_now() return true if a reply has arrived.
  bool read_if_nobody_does();
  bool read_now();
  void hand_over_reading() LOCKSTEP_REQUIRES(mutex_);
  void wake_all() LOCKSTEP_REQUIRES(mutex_);
  void break_off(const std::string& reason) noexcept;
  [[nodiscard]] PeerLost lost_error() const LOCKSTEP_REQUIRES(mutex_);

  const TcpStoreOptions options_;
  store::StoreKey key_;
  std::optional<sys::SocketAddress> server_;
  std::string address_;
  std::string session_;     // empty if reconnecting is disabled
  std::string store_name_;  // only used by the reader
  sys::ForkAware process_;

  Mutex sending_;
  std::optional<store::Sealer> sealer_ LOCKSTEP_GUARDED_BY(sending_);
  std::optional<store::Opener> opener_;                   // only used by the reader
  store::FrameReader frames_{store::seal_bytes};          // only used by the reader
  std::map<std::string, std::string> on_each_connection_  // requests by key
      LOCKSTEP_GUARDED_BY(sending_);

  mutable Mutex mutex_;
  sys::PrivateDescriptor socket_;  // replaced under both mutexes
  bool reading_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool connected_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Clock::time_point> broken_at_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string broken_why_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Call> waiting_ LOCKSTEP_GUARDED_BY(mutex_);  // calls without a reply
  std::vector<std::uint64_t> outbox_ LOCKSTEP_GUARDED_BY(mutex_);      // requests to send
  bool is_sent_for_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<std::string> lost_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> next_id_ = 1;
  std::atomic<std::int64_t> made_ = 0;    // number of connections
  std::atomic<int> untaken_replies_ = 0;  // replies whose callers are about to wake
};

}  // namespace lockstep
