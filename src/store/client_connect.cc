// Connects a TcpStore to its server, and reconnects it after the connection broke.
#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "store/client_connection.h"
#include "store/sessions.h"
#include "sys/sockets.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

namespace lockstep {
namespace {

// A server that accepts connections but sends no greeting is not a store, or hangs.
constexpr Duration handshake_limit = std::chrono::seconds(20);
constexpr Duration one_try = std::chrono::seconds(1);
constexpr Duration between_tries = std::chrono::milliseconds(20);

// Checks that the server runs as this user, because any user can listen at an abstract name.
void check_owner(int socket, const std::string& address) {
  auto owner = sys::peer_credentials(socket).uid;
  check_input(owner == ::geteuid(),
              "store at {} belongs to user {}, but this process runs as user {}", address, owner,
              ::geteuid());
}

}  // namespace

// Makes the first connection; the server may start later.
void TcpStore::Connection::connect(Deadline deadline) {
  server_ = sys::SocketAddress::of(options_.host, options_.port);
  address_ = server_->text();
  for (;;) {
    try {
      return try_once(deadline);
    } catch (const PeerLost&) {  // a busy server closes unproven connections
      if (deadline.passed())
        throw PeerLost(formatted("store at {} closed the connection", address_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void TcpStore::Connection::try_once(Deadline deadline) {
  sys::FileDescriptor socket = sys::connect_to(*server_, deadline);
  if (server_->family() == AF_UNIX) check_owner(socket.get(), address_);
  const Deadline soon = deadline.or_sooner(Deadline::after(handshake_limit));
  std::optional<store::ClientStreams> streams;
  try {
    streams.emplace(store::shake_hands(socket.get(), address_, key_, soon));
  } catch (const Timeout&) {
    throw Timeout(formatted("store at {} takes connections but does not answer", address_));
  }
  sys::keep_alive(socket.get(), options_.lost_after);
  const Lock sending(sending_);
  {
    const Lock lock(mutex_);
    if (lost_) throw lost_error();
    socket_ = std::move(socket);
  }
  ++made_;
  sealer_.emplace(std::move(streams->to_server));
  opener_.emplace(streams->from_server);
  frames_ = store::FrameReader(store::seal_bytes);
  if (!session_.empty()) begin_session(frames_, soon);
  send_again();
}

// Does not use call(), because no other thread may read or send yet.
void TcpStore::Connection::begin_session(store::FrameReader& frames, Deadline deadline) {
  send_frames({store::encode({0, store::Code::session, 0, {session_}})});
  std::string sealed;
  for (sys::Retries retries(socket_.get(), POLLIN, deadline); !frames.next(sealed);) {
    std::array<std::byte, 4096> buffer;
    if (!retries.wait())
      throw Timeout(formatted("store at {} takes connections but does not answer", address_));
    const auto count = sys::receive_now(socket_.get(), buffer);
    if (count) frames.append({reinterpret_cast<const char*>(buffer.data()), *count});
  }
  const store::Message reply = store::decode(opener_->open(sealed));
  check_input(reply.code == store::Code::done && reply.parts.size() == 1,
              "store at {}: expected the store's name, found another reply", address_);
  check_input(store_name_.empty() || store_name_ == reply.parts[0],
              "store at {} is not the one from before: it was started again without the log of the "
              "first one (--log)",
              address_);
  store_name_ = reply.parts[0];
}

// Sends the requests that every connection begins with, and those that were not answered on the
// last connection.
void TcpStore::Connection::send_again() {
  std::vector<std::string> requests;
  for (const auto& [key, request] : on_each_connection_) requests.push_back(request);
  {
    const Lock lock(mutex_);
    for (const auto& [id, call] : waiting_) {
      call->is_sent = true;
      requests.push_back(call->request);
    }
    outbox_.clear();
    connected_ = true;
    broken_at_.reset();
  }
  send_frames(requests);
}

// Tries once to reconnect; called by the reading thread. The try is long enough for a busy server,
// even if the caller's own deadline is near.
void TcpStore::Connection::repair(Deadline deadline) {
  std::string why;
  try {
    return try_once(Deadline::after(one_try));
  } catch (const BadInput& error) {
    return lose(error.what());
  } catch (const std::exception& error) {
    why = error.what();
  }
  bool too_late = false;
  {
    const Lock lock(mutex_);
    connected_ = false;
    if (!broken_at_) broken_at_ = Clock::now();
    too_late = broken_at_ && Clock::now() - *broken_at_ >= options_.reconnect;
    if (too_late)
      why = formatted("{}; it could not be reached again within {} ({})", broken_why_,
                      format_duration(options_.reconnect), why);
  }
  if (too_late) return lose(why);
  std::this_thread::sleep_for(std::min<Duration>(between_tries, deadline.left()));
}

}  // namespace lockstep
