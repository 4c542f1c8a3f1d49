#include "store/client_connection.h"

#include "base/check.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "store/limits.h"
#include "sys/descriptor_passing.h"
#include "sys/sockets.h"

#include <array>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep {
namespace {

// One that accepts connections but does not greet is no store, or stuck.
constexpr Duration handshake_limit = std::chrono::seconds(20);

// Any user can listen at an abstract name: the kernel says who does.
void check_owner(int socket, const std::string& address) {
  auto owner = sys::peer_credentials(socket).uid;
  check_input(owner == ::geteuid(), "store at {} belongs to user {}, expected this one, {}",
              address, owner, ::geteuid());
}

void throw_unless_done(const store::Message& reply, Clock::time_point start) {
  if (reply.code == store::Code::done) return;
  if (reply.code == store::Code::late) {
    throw store::missing_keys(reply.parts, Clock::now() - start);
  }
  throw BadInput(reply.parts.empty() ? "store: a request was refused" : reply.parts[0]);
}

}  // namespace

TcpStore::Connection::Connection(const TcpStoreOptions& options)
    : call_timeout_(options.call_timeout) {
  store::ClientStreams streams = connect(options);
  sealer_.emplace(std::move(streams.to_server));
  opener_.emplace(std::move(streams.from_server));
  sys::keep_alive(socket_.get(), options.lost_after);
  reader_ = sys::Thread("store client", [this] { read_replies(); });
}

TcpStore::Connection::~Connection() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  reader_.join();
}

store::ClientStreams TcpStore::Connection::connect(const TcpStoreOptions& options) {
  Deadline deadline = Deadline::after(options.connect_timeout);
  store::StoreKey key(options.secret);
  sys::SocketAddress server = sys::SocketAddress::of(options.host, options.port);
  address_ = server.text();
  for (;;) {
    socket_ = sys::connect_to(server, deadline);
    if (server.family() == AF_UNIX) check_owner(socket_.get(), address_);
    try {
      auto soon = deadline.or_sooner(Deadline::after(handshake_limit));
      return store::shake_hands(socket_.get(), address_, key, soon);
    } catch (const Timeout&) {
      throw Timeout(formatted("store at {} takes connections but does not answer", address_));
    } catch (const PeerLost&) {  // a busy server closes connections that are not proven yet
      if (deadline.passed()) throw PeerLost(formatted("store at {} hangs up", address_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

store::Message TcpStore::Connection::call(store::Message request, Deadline deadline) {
  check(!is_copy_of_parent(), "store at {}: made in process {}, not usable in its child {}",
        address_, process_.number(), sys::own_process());
  auto start = Clock::now();
  std::uint64_t id = begin(request);
  ScopeExit forget([&] {
    Lock lock(mutex_);
    waiting_.erase(id);
  });
  send(request);
  store::Message reply = wait_for_reply(id, deadline);
  throw_unless_done(reply, start);
  return reply;
}

std::uint64_t TcpStore::Connection::begin(store::Message& request) {
  Lock lock(mutex_);
  if (lost_) throw lost_error();
  request.id = next_id_++;
  waiting_.emplace(request.id, std::nullopt);
  return request.id;
}

void TcpStore::Connection::send(const store::Message& request) {
  std::string message = store::encode(request);
  Lock lock(sending_);
  std::string frame = sealer_->seal(message);
  try {
    sys::send_all(socket_.get(), sys::bytes_of(frame), Deadline::after(call_timeout_));
  } catch (const Error& error) {  // half a frame may be out: nothing can follow it
    lose(error.what());
    throw PeerLost(formatted("store at {} has gone: {}", address_, error.what()));
  }
}

store::Message TcpStore::Connection::wait_for_reply(std::uint64_t id, Deadline deadline) {
  Lock lock(mutex_);
  for (;;) {
    if (auto& reply = waiting_.at(id)) return *std::move(reply);
    if (lost_) throw lost_error();
    if (deadline.passed()) throw Timeout(formatted("store at {} did not answer", address_));
    changed_.wait_for(lock.native(), std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
}

void TcpStore::Connection::read_replies() noexcept {
  try {
    store::FrameReader frames(store::seal_bytes);
    for (;;) read_some(frames);
  } catch (const std::exception& error) {
    lose(error.what());
  }
}

void TcpStore::Connection::read_some(store::FrameReader& frames) {
  std::array<std::byte, 64 << 10> buffer;
  auto count = sys::receive_now(socket_.get(), buffer);
  if (!count) {
    (void)sys::wait_ready(socket_.get(), POLLIN, Deadline::never());
    return;
  }
  frames.append({reinterpret_cast<const char*>(buffer.data()), *count});
  for (std::string sealed; frames.next(sealed);) {
    store::Message reply = store::decode(opener_->open(sealed));
    Lock lock(mutex_);
    auto place = waiting_.find(reply.id);
    if (place == waiting_.end()) continue;  // its caller has given up
    place->second = std::move(reply);
    changed_.notify_all();
  }
}

void TcpStore::Connection::lose(const std::string& reason) noexcept {
  Lock lock(mutex_);
  if (!lost_) lost_ = reason;
  ::shutdown(socket_.get(), SHUT_RDWR);
  changed_.notify_all();
}

PeerLost TcpStore::Connection::lost_error() const {
  return PeerLost(formatted("store at {} has gone: {}", address_, *lost_));
}

}  // namespace lockstep
