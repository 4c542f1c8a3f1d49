#include "store/client_connection.h"

#include "base/check.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "store/table.h"
#include "sys/random_bytes.h"
#include "sys/sockets.h"

#include <array>
#include <exception>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr int most_turns_of_a_sender = 16;

void throw_unless_done(const store::Message& reply, Clock::time_point start) {
  if (reply.code == store::Code::done) return;
  if (reply.code == store::Code::late) {
    throw store::missing_keys(reply.parts, Clock::now() - start);
  }
  throw BadInput(reply.parts.empty() ? "store: a request was refused" : reply.parts[0]);
}

}  // namespace

TcpStore::Connection::Connection(const TcpStoreOptions& options)
    : options_(options), key_(options.secret) {
  if (options_.reconnect > Duration::zero()) session_ = sys::random_bytes(store::session_bytes);
  connect(Deadline::after(options_.connect_timeout));
}

TcpStore::Connection::~Connection() { ::shutdown(socket_.get(), SHUT_RDWR); }

std::string TcpStore::Connection::own_address() const {
  const Lock lock(mutex_);
  return sys::SocketAddress::local(socket_.get()).host();
}

store::Message TcpStore::Connection::call(store::Message request, Deadline deadline) {
  check(!is_copy_of_parent(), "store at {}: made in process {}, not usable in its child {}",
        address_, process_.number(), sys::own_process());
  auto start = Clock::now();
  request.id = next_id_++;
  const Call own = begin(request.id, store::encode(request));
  store::Message reply = wait_for_reply(request.id, *own, deadline);
  throw_unless_done(reply, start);
  return reply;
}

store::Message TcpStore::Connection::call(store::Message request) {
  return call(std::move(request),
              Deadline::after(std::max(options_.call_timeout, options_.reconnect)));
}

void TcpStore::Connection::call_on_each_connection(store::Message request) {
  const std::string key = request.parts.at(0);
  std::optional<std::string> before = keep(key, store::encode(request));
  try {
    call(std::move(request));
  } catch (...) {
    (void)keep(key, std::move(before));
    throw;
  }
}

std::optional<std::string> TcpStore::Connection::keep(const std::string& key,
                                                      std::optional<std::string> message) {
  const Lock sending(sending_);
  auto before = on_each_connection_.extract(key);
  if (message) on_each_connection_.emplace(key, *std::move(message));
  return before.empty() ? std::nullopt : std::optional(std::move(before.mapped()));
}

TcpStore::Connection::Call TcpStore::Connection::begin(std::uint64_t id, std::string request) {
  auto own = std::make_shared<store::WaitingCall>(std::move(request));
  const Lock lock(mutex_);
  if (lost_) throw lost_error();
  waiting_.emplace(id, own);
  outbox_.push_back(id);
  own->sends = !std::exchange(is_sent_for_, true);
  return own;
}

// Sends requests while other callers add new ones, but only for a limited number of turns, because
// the caller's own reply may have arrived.
void TcpStore::Connection::send_for_all(store::WaitingCall& own) {
  // Callers that just got a reply will soon start their next request: wait for them and send all in
  // one piece.
  if (untaken_replies_ > 0) std::this_thread::yield();
  for (int turn = 1;; ++turn) {
    {
      const Lock lock(mutex_);
      const bool is_done = outbox_.empty() || !connected_;
      if (is_done || (turn > most_turns_of_a_sender && hand_over_sending())) {
        own.sends = false;
        if (is_done) is_sent_for_ = false;
        return;
      }
    }
    send_outbox();
  }
}

// Passes the turn to send to a caller whose request is in the outbox. Skips the caller that is
// reading, because it would notice too late. Returns false if there is no such caller.
bool TcpStore::Connection::hand_over_sending() {
  for (const std::uint64_t id : outbox_) {
    const auto next = waiting_.find(id);
    if (next == waiting_.end() || next->second->reads) continue;
    next->second->sends = true;
    next->second->wake();
    return true;
  }
  return false;
}

void TcpStore::Connection::send_outbox() {
  const Lock sending(sending_);
  try {
    send_frames(take_outbox());
    // part of a frame may have been sent: the connection is unusable
  } catch (const std::exception& error) {
    break_off(error.what());
  }
}

std::vector<std::string> TcpStore::Connection::take_outbox() {
  std::vector<std::string> requests;
  const Lock lock(mutex_);
  if (!connected_) return requests;  // the next connection starts by sending them
  for (const std::uint64_t id : outbox_) {
    const auto place = waiting_.find(id);
    if (place == waiting_.end() || std::exchange(place->second->is_sent, true)) continue;
    std::string& request = place->second->request;
    if (session_.empty())
      requests.push_back(std::move(request));
    else
      requests.push_back(request);
  }
  outbox_.clear();
  return requests;
}

// A server stops reading requests if its replies are not read, so this also reads while it sends,
// if the caller is the reader or there is no reader.
void TcpStore::Connection::send_frames(const std::vector<std::string>& messages, bool is_reader) {
  std::string frames;
  for (const std::string& message : messages) frames += sealer_->seal(message);
  std::span<const std::byte> left = sys::bytes_of(frames);
  const Deadline deadline = Deadline::after(options_.call_timeout);
  const sys::Retries anew(socket_.get(), POLLOUT | POLLIN, deadline);
  for (sys::Retries retries = anew; !left.empty();) {
    if (const auto sent = sys::send_now(socket_.get(), left)) {
      left = left.subspan(*sent);
      retries = anew;
      continue;
    }
    if (deadline.passed() || !retries.wait())
      throw Timeout(formatted("store at {} takes no requests", address_));
    if (is_reader ? read_now() : read_if_nobody_does()) retries = anew;
  }
}

store::Message TcpStore::Connection::wait_for_reply(std::uint64_t id, store::WaitingCall& own,
                                                    Deadline deadline) {
  for (;;) {
    // Read `wakes` first: a wake after this line ends the next sleep.
    const std::uint32_t wakes = own.wakes();
    const bool is_answered = own.is_answered();
    if (own.sends) {
      send_for_all(own);
      continue;
    }
    if (is_answered && !own.reads) return take_reply(own);
    const Next next = is_answered ? Next::leave : next_of(own, deadline);
    if (next == Next::leave) return leave(id, own);
    if (next == Next::sleep)
      own.sleep(wakes, deadline);
    else
      read_or_repair(deadline);
  }
}

store::Message TcpStore::Connection::take_reply(store::WaitingCall& own) {
  --untaken_replies_;
  return own.take_reply();
}

TcpStore::Connection::Next TcpStore::Connection::next_of(store::WaitingCall& own,
                                                         Deadline deadline) {
  const Lock lock(mutex_);
  if (lost_ || deadline.passed()) return Next::leave;
  // The reader must not hold the turn to send, because it would send too late. The caller was woken
  // with its turn, so its sleep ends at once.
  if (own.sends) return Next::sleep;
  if (reading_ && !own.reads) return Next::sleep;
  own.reads = reading_ = true;
  return Next::read;
}

store::Message TcpStore::Connection::leave(std::uint64_t id, store::WaitingCall& own) {
  Lock lock(mutex_);
  waiting_.erase(id);
  if (own.reads) reading_ = false;
  if (!reading_) hand_over_reading();
  if (own.sends) {  // it got the turn to send meanwhile
    lock.unlock();
    send_for_all(own);
    lock.lock();
  }
  if (own.is_answered()) return take_reply(own);
  if (lost_) throw lost_error();
  throw Timeout(formatted("store at {} did not answer", address_));
}

// Wakes one of the waiting callers to become the reader.
void TcpStore::Connection::hand_over_reading() {
  if (!waiting_.empty()) waiting_.begin()->second->wake();
}

void TcpStore::Connection::wake_all() {
  for (const auto& [id, call] : waiting_) call->wake();
}

void TcpStore::Connection::read_or_repair(Deadline deadline) {
  bool connected = false;
  {
    const Lock lock(mutex_);
    connected = connected_;
  }
  if (!connected) return repair(deadline);
  try {
    for (sys::Retries retries(socket_.get(), POLLIN, deadline); retries.wait();)
      if (read_now()) return;
  } catch (const std::exception& error) {
    break_off(error.what());
  }
}

bool TcpStore::Connection::read_if_nobody_does() {
  {
    const Lock lock(mutex_);
    if (reading_) return false;
    reading_ = true;
  }
  const ScopeExit done([&] {
    const Lock lock(mutex_);
    reading_ = false;
    hand_over_reading();
  });
  return read_now();
}

bool TcpStore::Connection::read_now() {
  std::array<std::byte, 64 << 10> buffer;
  auto count = sys::receive_now(socket_.get(), buffer);
  if (!count) return false;
  frames_.append({reinterpret_cast<const char*>(buffer.data()), *count});
  std::vector<store::Message> replies;
  for (std::string sealed; frames_.next(sealed);)
    replies.push_back(store::decode(opener_->open(sealed)));
  std::vector<Call> answered;
  {
    const Lock lock(mutex_);
    for (store::Message& reply : replies) {
      const auto place = waiting_.find(reply.id);
      if (place == waiting_.end()) continue;  // the caller has given up
      ++untaken_replies_;
      place->second->answer(std::move(reply));
      answered.push_back(std::move(place->second));
      waiting_.erase(place);
    }
  }
  for (const Call& call : answered) call->wake();
  return true;
}

void TcpStore::Connection::break_off(const std::string& reason) noexcept {
  if (session_.empty()) return lose(reason);
  Lock lock(mutex_);
  ::shutdown(socket_.get(), SHUT_RDWR);
  connected_ = false;
  if (!broken_at_) {
    broken_at_ = Clock::now();
    broken_why_ = reason;
  }
  wake_all();
}

void TcpStore::Connection::lose(const std::string& reason) noexcept {
  Lock lock(mutex_);
  if (!lost_) lost_ = reason;
  ::shutdown(socket_.get(), SHUT_RDWR);
  wake_all();
}

PeerLost TcpStore::Connection::lost_error() const {
  return PeerLost(formatted("store at {} has gone: {}", address_, *lost_));
}

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
  server_ = sys::SocketAddress::of(options_.host, options_.port, deadline);
  address_ = server_->text();
  for (;;) {
    try {
      return try_once(deadline);
    } catch (const PeerLost&) {  // a busy server closes unauthenticated connections
      if (deadline.passed())
        throw PeerLost(formatted("store at {} closed the connection", address_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void TcpStore::Connection::try_once(Deadline deadline) {
  sys::PrivateDescriptor socket(sys::connect_to(*server_, deadline));
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

// Sends the requests that every connection begins with, and the unanswered requests of the last
// connection.
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
  send_frames(requests, /*is_reader=*/true);
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
