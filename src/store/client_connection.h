// TcpStore's connection: many threads call, one reader thread hands each its reply.
#pragma once

#include "base/mutex.h"
#include "store/client_handshake.h"
#include "store/wire.h"
#include "sys/file_descriptor.h"
#include "sys/own_process.h"
#include "sys/thread.h"

#include <condition_variable>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include <lockstep/base/error.h>
#include <lockstep/store/tcp_store.h>

namespace lockstep {

// `sending_` guards all writes to the socket, too; `mutex_` may be taken while it is held, never
// the other way round. The reader thread alone receives. Once `lost_` is set it stays, the socket
// is shut, and every call throws.
class TcpStore::Connection {
 public:
  explicit Connection(const TcpStoreOptions& options);
  ~Connection();

  // Sends a request and blocks until its reply, which has Code::done. Timeout at the deadline, or
  // when the server says that keys did not come; BadInput when it refuses the request.
  store::Message call(store::Message request, Deadline deadline);

  // Every call throws from now on, those that wait too.
  void lose(const std::string& reason) noexcept;

  [[nodiscard]] Duration call_timeout() const { return call_timeout_; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  // True in a forked child, which has a copy of this object but not its thread.
  [[nodiscard]] bool is_copy_of_parent() const { return process_.is_copy_of_parent(); }

 private:
  using Replies = std::unordered_map<std::uint64_t, std::optional<store::Message>>;

  [[nodiscard]] store::ClientStreams connect(const TcpStoreOptions& options);
  std::uint64_t begin(store::Message& request);
  void send(const store::Message& request);
  store::Message wait_for_reply(std::uint64_t id, Deadline deadline);
  void read_replies() noexcept;
  void read_some(store::FrameReader& frames);
  [[nodiscard]] PeerLost lost_error() const LOCKSTEP_REQUIRES(mutex_);

  std::string address_;
  Duration call_timeout_;
  sys::OwnProcess process_;
  sys::FileDescriptor socket_;

  Mutex sending_;
  std::optional<store::Sealer> sealer_ LOCKSTEP_GUARDED_BY(sending_);
  std::optional<store::Opener> opener_;  // the reader's

  Mutex mutex_;
  std::condition_variable changed_;
  Replies waiting_ LOCKSTEP_GUARDED_BY(mutex_);  // by request; empty until the reply is there
  std::optional<std::string> lost_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t next_id_ LOCKSTEP_GUARDED_BY(mutex_) = 1;
  sys::Thread reader_;
};

}  // namespace lockstep
