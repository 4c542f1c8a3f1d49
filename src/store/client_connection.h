// TcpStore's connection: many threads call; one of those that wait for replies reads for all.
#pragma once

#include "base/mutex.h"
#include "store/handshake.h"
#include "store/wire.h"
#include "sys/file_descriptor.h"
#include "sys/futex.h"
#include "sys/own_process.h"
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

// A call of TcpStore that waits for its reply. Its caller sleeps on it; other threads wake it.
// Shared by its caller and by the thread that wakes it, which may be a moment late: the caller does
// not wait for that. A wake may come for no reason.
class WaitingCall {
 public:
  explicit WaitingCall(std::string message) : request(std::move(message)) {}

  // By the thread that reads, once.
  void answer(Message reply) {
    reply_ = std::move(reply);
    is_answered_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool is_answered() const { return is_answered_.load(std::memory_order_acquire); }
  // By the caller, once, when it is answered.
  [[nodiscard]] Message take_reply() { return std::move(reply_); }

  // The caller looks at its conditions after wakes() and sleeps only if no wake() came since.
  [[nodiscard]] std::uint32_t wakes() const { return wakes_.load(std::memory_order_acquire); }
  void sleep(std::uint32_t seen_wakes, Deadline deadline) const {
    sys::futex_wait(wakes_, seen_wakes, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
  void wake() {
    wakes_.fetch_add(1, std::memory_order_release);
    sys::futex_wake_all(wakes_);
  }

  // Guarded by the connection's mutex.
  std::string request;   // encoded; after it was sent only where the connection can be made anew
  bool is_sent = false;  // on this connection
  bool reads = false;    // the caller reads for all; changed by it alone

  // Whether it is the caller's turn to send what callers have begun; changes under the connection's
  // mutex.
  std::atomic<bool> sends = false;

 private:
  Message reply_;
  std::atomic<bool> is_answered_ = false;
  std::atomic<std::uint32_t> wakes_ = 0;
};

}  // namespace store

// `sending_` guards all writes to the socket, too; `mutex_` may be taken while it is held, never
// the other way round. The thread that has set `reading_` alone receives, and alone makes a broken
// connection anew, for which it holds `sending_`. Once `lost_` is set it stays, the socket is shut,
// and every call throws.
//
// Of the callers that begin requests at the same time one sends them all, in one piece: the one
// whose call's `sends` is set, while `is_sent_for_` is. The others sleep until they have their
// replies, each on its own, and take no mutex when they wake.
class TcpStore::Connection {
 public:
  explicit Connection(const TcpStoreOptions& options);
  ~Connection();

  // Sends a request and blocks until its reply, which has Code::done. Timeout at the deadline, or
  // when the server says that keys did not come; BadInput when it refuses the request.
  store::Message call(store::Message request, Deadline deadline);
  // The same for a request that every new connection begins with, also one that is made before the
  // reply is there. A request that failed is forgotten, and the one before it counts again.
  void call_on_each_connection(store::Message request);

  // Every call throws from now on, those that wait too.
  void lose(const std::string& reason) noexcept;

  // Of a call that does not block at the server.
  [[nodiscard]] Duration call_timeout() const;
  [[nodiscard]] std::string own_address() const;
  [[nodiscard]] std::int64_t made() const { return made_; }
  // True in a forked child, which has a copy of this object.
  [[nodiscard]] bool is_copy_of_parent() const { return process_.is_copy_of_parent(); }

 private:
  using Call = std::shared_ptr<store::WaitingCall>;

  void connect(Deadline deadline);
  // What every new connection says under this key, from now on; returns what it said before.
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
  void send_frames(const std::vector<std::string>& messages) LOCKSTEP_REQUIRES(sending_);
  store::Message wait_for_reply(std::uint64_t id, store::WaitingCall& own, Deadline deadline);
  store::Message take_reply(store::WaitingCall& own);
  enum class Next { leave, read, sleep };
  [[nodiscard]] Next next_of(store::WaitingCall& own, Deadline deadline);
  store::Message leave(std::uint64_t id, store::WaitingCall& own);
  void read_or_repair(Deadline deadline);
  // Both: whether anything has come.
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
  std::string session_;     // empty: a broken connection is lost
  std::string store_name_;  // the reader's
  sys::OwnProcess process_;

  Mutex sending_;
  std::optional<store::Sealer> sealer_ LOCKSTEP_GUARDED_BY(sending_);
  std::optional<store::Opener> opener_;                   // the reader's
  store::FrameReader frames_{store::seal_bytes};          // the reader's
  std::map<std::string, std::string> on_each_connection_  // messages by key
      LOCKSTEP_GUARDED_BY(sending_);

  mutable Mutex mutex_;
  sys::FileDescriptor socket_;  // replaced under both mutexes
  bool reading_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool connected_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Clock::time_point> broken_at_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string broken_why_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Call> waiting_ LOCKSTEP_GUARDED_BY(mutex_);  // without a reply
  std::vector<std::uint64_t> outbox_ LOCKSTEP_GUARDED_BY(mutex_);      // requests to be sent
  bool is_sent_for_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<std::string> lost_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> next_id_ = 1;
  std::atomic<std::int64_t> made_ = 0;    // connections
  std::atomic<int> untaken_replies_ = 0;  // of callers that are about to wake
};

}  // namespace lockstep
