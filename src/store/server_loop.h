// The server's thread: one poll() loop over the listener and all connections. The loop never blocks
// on a single connection.
#pragma once

#include "store/handshake.h"
#include "store/log.h"
#include "store/requests.h"
#include "store/server_session.h"
#include "store/sessions.h"
#include "store/table.h"
#include "sys/file_descriptor.h"
#include "sys/own_process.h"
#include "sys/thread.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include <lockstep/base/deadline.h>
#include <lockstep/store/store_server.h>

namespace lockstep {

// Once the thread runs, it owns all members except `stopping_`, `ended_` and `wake_`.
//
// Bounds: at most max_unproven connections are unproven, and each of them holds the bytes of one
// handshake for at most handshake_timeout. From a proven connection no request is read or answered
// while much of its output is unsent, and at most max_parked of its requests wait. All connections
// together hold at most max_bytes in values, the same amount in incomplete requests, and
// max_parked_bytes_of_all in waiting requests.
class StoreServer::Loop {
 public:
  Loop(StoreServerOptions options, sys::FileDescriptor listener);
  ~Loop();

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] bool serves() const { return !ended_; }
  // Returns true in a forked child, which has a copy of this object but not its thread.
  [[nodiscard]] bool is_copy_of_parent() const { return process_.is_copy_of_parent(); }

 private:
  struct Connection {
    sys::FileDescriptor socket;
    store::ServerSession session;
    Deadline handshake_deadline;
    std::string origin;       // an address; connections from one address compete for places
    std::string client = {};  // session name; empty if the client cannot reconnect
    store::DisconnectValues on_disconnect = {};
    std::deque<store::ParkedRequest> due = {};  // ready, but the output is full
    bool closing = false;                       // close at the end of the turn
  };
  using Connections = std::map<std::uint64_t, Connection>;  // by number: the oldest first

  void run();
  void turn();
  [[nodiscard]] Deadline next_deadline() const;
  void accept_all();
  [[nodiscard]] bool may_enter(int socket) const;
  void accept(sys::FileDescriptor socket);
  void drop_one_unproven();
  void note_refusal(const std::string& origin);
  [[nodiscard]] bool holds_too_much() const;
  void commit_log();
  void serve(std::uint64_t number, Connection& connection, short events);
  [[nodiscard]] bool answer_some(std::uint64_t number, Connection& connection);
  void answer(std::uint64_t number, Connection& connection, store::Message request);
  void begin_session(Connection& connection, const store::Message& request);
  void take_over(Connection& connection, const std::string& client);
  [[nodiscard]] bool answer_again(Connection& connection, const store::Message& request);
  void note(const Connection& connection, const store::Message& request,
            const store::Outcome& outcome);
  void answer_ready(const std::string& key);
  void answer_late();
  void write(const store::DisconnectValues& values);
  void answer_parked(store::ParkedRequest parked);
  void reply_to(std::uint64_t number, const store::Message& reply);
  void close_finished();

  StoreServerOptions options_;
  sys::OwnProcess process_;
  store::StoreKey key_;
  std::string address_;
  std::uint16_t port_ = 0;
  sys::FileDescriptor listener_;
  Deadline accept_again_ = Deadline::after(Duration::zero());  // later if descriptors ran out
  sys::FileDescriptor wake_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;
  std::vector<std::byte> buffer_;  // receives the bytes of one call

  store::Table table_;
  store::Sessions sessions_;
  std::optional<store::Log> log_;
  std::string store_name_;
  store::ParkedRequests parked_;
  Connections connections_;
  std::uint64_t next_number_ = 0;
  Deadline next_refusal_line_ = Deadline::after(Duration::zero());
  std::uint64_t refused_ = 0;  // since the last log line about refusals
  sys::Thread thread_;
};

}  // namespace lockstep
