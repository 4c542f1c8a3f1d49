#include <lockstep/store/store_server.h>

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "store/handshake.h"
#include "store/log.h"
#include "store/requests.h"
#include "store/table.h"
#include "sys/file_descriptor.h"
#include "sys/own_process.h"
#include "sys/sockets.h"
#include "sys/thread.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr std::size_t receive_bytes = 256 << 10;    // limit per connection and turn
constexpr std::size_t much_output_bytes = 1 << 20;  // above this, no more requests are read
constexpr int accepts_a_turn = 16;  // limited, so that a flood leaves time for other connections

// above this, the total of all connections is checked
constexpr std::size_t many_held_bytes = 1 << 20;
constexpr std::chrono::seconds between_refusal_lines{10};

// The log cannot be written, so the server cannot guarantee any further change.
class LogLost : public Error {
  using Error::Error;
};

// Returns the address of a peer; for IPv6 only the first 64 bits, because one host has 2^64
// addresses.
std::string origin_of(const sys::SocketAddress& peer) {
  std::string host = peer.host();
  if (peer.family() == AF_UNIX) return "this host";
  if (peer.family() != AF_INET6 || host.starts_with("::ffff:")) return host;
  const auto* address = reinterpret_cast<const sockaddr_in6*>(peer.get());
  std::string prefix;
  for (int i = 0; i < 8; i += 2)
    prefix +=
        formatted("{:x}:", address->sin6_addr.s6_addr[i] << 8 | address->sin6_addr.s6_addr[i + 1]);
  return prefix + ":";
}

void flush(int socket, store::ServerSession& session) {
  while (!session.output().empty()) {
    auto count = sys::send_now(socket, sys::bytes_of(session.output()));
    if (!count) return;
    session.mark_sent(*count);
  }
}

void receive(int socket, store::ServerSession& session, std::span<std::byte> buffer) {
  auto count = sys::receive_now(socket, buffer);
  if (count) session.receive({reinterpret_cast<const char*>(buffer.data()), *count});
}

Deadline timeout_of(const store::Message& request) {
  return Deadline::after(Duration(std::max<std::int64_t>(0, request.number)));
}

}  // namespace

// The server's thread: one poll() loop over the listener and all connections. The loop never blocks
// on a single connection.
//
// Once the thread runs, it owns all members except `stopping_`, `ended_` and `wake_`.
//
// Bounds: at most max_unproven connections are not authenticated, and each of these holds the bytes
// of one handshake for at most handshake_timeout. At most max_parked requests of an authenticated
// connection wait, and its requests are not read or answered while much of its output is unsent.
// All connections together hold at most max_bytes in values, the same amount in incomplete
// requests, and max_parked_bytes_of_all in waiting requests.
class StoreServer::Loop {
 public:
  Loop(StoreServerOptions options, sys::PrivateDescriptor listener)
      : options_(std::move(options)),
        key_(options_.secret),
        address_(sys::SocketAddress::local(listener.get()).text()),
        port_(sys::SocketAddress::local(listener.get()).port()),
        listener_(std::move(listener)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        buffer_(receive_bytes),
        table_(options_.max_bytes) {
    if (!wake_) throw SystemError("making an eventfd", errno);
    if (!options_.log.empty()) log_.emplace(options_.log, table_, sessions_);
    store_name_ = log_ ? log_->store_name() : store::random_store_name();
    thread_ = sys::Thread("store server", [this] { run(); });
  }
  ~Loop() {
    stopping_ = true;
    std::uint64_t one = 1;
    [[maybe_unused]] auto written = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] bool serves() const { return !ended_; }
  // Returns true in a forked child, which has a copy of this object but not its thread.
  [[nodiscard]] bool is_copy_of_parent() const { return process_.is_copy_of_parent(); }

 private:
  struct Connection {
    sys::PrivateDescriptor socket;
    store::ServerSession session;
    Deadline handshake_deadline;
    std::string origin;       // an address; connections from one address compete for places
    std::string client = {};  // session name; empty if the client cannot reconnect
    store::DisconnectValues on_disconnect = {};
    std::deque<store::ParkedRequest> due = {};  // ready, but the output is full
    bool closing = false;                       // close at the end of the turn
  };
  using Connections = std::map<std::uint64_t, Connection>;  // by number: the oldest first

  void run() {
    try {
      while (!stopping_) turn();
    } catch (const std::exception& error) {
      log::error("store at {} ends: {}", address_, error.what());
    }
    connections_.clear();
    listener_.reset();
    ended_ = true;
  }

  void turn() {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    entries.push_back(
        {listener_.get(), static_cast<short>(accept_again_.passed() ? POLLIN : 0), 0});
    std::vector<std::uint64_t> numbers;
    for (auto& [number, connection] : connections_) {
      std::size_t waiting = connection.session.output().size();
      int events = (waiting < much_output_bytes ? POLLIN : 0) | (waiting > 0 ? POLLOUT : 0);
      entries.push_back({connection.socket.get(), static_cast<short>(events), 0});
      numbers.push_back(number);
    }
    const bool ready = sys::wait_for_events(entries, next_deadline());
    for (std::size_t i = 0; i < numbers.size() && ready; ++i) {
      short events = entries[i + 2].revents;
      if (events != 0) serve(numbers[i], connections_.at(numbers[i]), events);
    }
    answer_late();
    close_finished();
    if (ready && entries[1].revents != 0) accept_all();
  }

  [[nodiscard]] Deadline next_deadline() const {
    Deadline next = parked_.next_deadline();
    if (!accept_again_.passed()) next = next.or_sooner(accept_again_);
    for (const auto& [number, connection] : connections_) {
      if (!connection.session.proven()) next = next.or_sooner(connection.handshake_deadline);
    }
    return next;
  }

  void accept_all() {
    try {
      for (int i = 0; i < accepts_a_turn; ++i) {
        sys::PrivateDescriptor socket(sys::accept_now(listener_.get()));
        if (!socket) return;
        if (may_enter(socket.get())) accept(std::move(socket));
      }
    } catch (const SystemError& error) {
      make_room_for_one(error);
    }
  }

  // If descriptors have run out while a client waits, closes a connection without proof, so that
  // peers that say nothing cannot keep that client out.
  void make_room_for_one(const SystemError& problem) {
    const bool is_short = problem.error_number() == EMFILE || problem.error_number() == ENFILE;
    pollfd entry{listener_.get(), POLLIN, 0};
    if (is_short && ::poll(&entry, 1, 0) == 0) return;  // no other client waits
    if (next_shortage_line_.passed()) {
      log::warning("store at {}: {}; trying again in a moment", address_, problem.what());
      next_shortage_line_ = Deadline::after(between_refusal_lines);
    }
    if (is_short && drop_one_unproven(0, std::chrono::milliseconds(200))) return;
    accept_again_ = Deadline::after(std::chrono::milliseconds(100));
  }

  // Checks the peer's user, because any user can connect to an abstract socket.
  [[nodiscard]] bool may_enter(int socket) const {
    if (!address_.starts_with('@')) return true;
    auto peer = sys::peer_credentials(socket);
    if (peer.uid == ::geteuid()) return true;
    log::warning("store at {}: refused a connection of user {}: only user {} may connect", address_,
                 peer.uid, ::geteuid());
    return false;
  }

  void accept(sys::PrivateDescriptor socket) {
    std::string origin;
    try {
      origin = origin_of(sys::SocketAddress::peer(socket.get()));
    } catch (const PeerLost&) {
      return;
    }
    sys::keep_alive(socket.get(), options_.lost_after);
    connections_.emplace(
        next_number_++, Connection{std::move(socket), store::ServerSession(key_),
                                   Deadline::after(options_.handshake_timeout), std::move(origin)});
    drop_one_unproven(options_.max_unproven);
  }

  // If there are more than `limit` unauthenticated connections of at least this age, closes a
  // random one of the address with the most of them, so that a flood from one address displaces
  // only its own connections. The choice is random because no rule identifies the honest clients:
  // if the server closed the oldest connections, distant peers would never be in time to answer; if
  // it kept the oldest, peers that never answer would stay. Returns true if it has closed one.
  bool drop_one_unproven(int limit, Duration age = Duration::zero()) {
    std::map<std::string_view, std::vector<Connections::iterator>> unproven;
    int count = 0;
    for (auto place = connections_.begin(); place != connections_.end(); ++place) {
      const Connection& one = place->second;
      if (one.session.proven() || one.handshake_deadline.left() > options_.handshake_timeout - age)
        continue;
      unproven[place->second.origin].push_back(place);
      ++count;
    }
    if (count <= limit) return false;
    const auto& most = std::ranges::max_element(unproven, {}, [](const auto& entry) {
                         return entry.second.size();
                       })->second;
    connections_.erase(most[::randombytes_uniform(static_cast<std::uint32_t>(most.size()))]);
    return true;
  }

  void note_refusal(const std::string& origin) {
    ++refused_;
    if (!next_refusal_line_.passed()) return;
    log::warning("store at {}: refused a connection from {}: it does not know the secret{}",
                 address_, origin,
                 refused_ > 1 ? formatted(" ({} since the last such line)", refused_) : "");
    refused_ = 0;
    next_refusal_line_ = Deadline::after(between_refusal_lines);
  }

  [[nodiscard]] bool holds_too_much() const {
    std::size_t bytes = 0;
    for (const auto& [number, connection] : connections_) bytes += connection.session.held_bytes();
    return bytes > options_.max_bytes;
  }

  void commit_log() {
    try {
      log_->commit();
    } catch (const SystemError& error) {
      throw LogLost(error.what());
    }
  }

  void serve(std::uint64_t number, Connection& connection, short events) {
    int socket = connection.socket.get();
    try {
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        receive(socket, connection.session, buffer_);
        if (connection.session.held_bytes() > many_held_bytes && holds_too_much())
          throw BadInput("store: the incomplete requests of all clients exceed the limit");
      }
      bool more = true;
      while (more) {
        more = answer_some(number, connection);
        if (log_) commit_log();
        flush(socket, connection.session);
        // poll() reports when the socket is writable again
        if (!connection.session.output().empty()) return;
      }
    } catch (const BadInput& error) {
      log::debug("store at {}: closing a connection: {}", address_, error.what());
      if (!connection.session.proven()) note_refusal(connection.origin);
      connection.closing = true;
    } catch (const LogLost&) {
      throw;  // a change that is not in the log must not be acknowledged
    } catch (const std::exception& error) {
      log::debug("store at {}: closing a connection: {}", address_, error.what());
      connection.closing = true;
    }
    if (!connection.closing) return;
    if (log_) commit_log();  // the changes of requests before the invalid one
    try {
      flush(socket, connection.session);  // sends a refusal as far as possible without blocking
    } catch (const Error&) {
      return;  // the connection is being closed anyway
    }
  }

  // Answers requests. Returns true if the connection has too much unsent output, and false if no
  // request is left.
  [[nodiscard]] bool answer_some(std::uint64_t number, Connection& connection) {
    while (connection.session.output().size() < much_output_bytes) {
      if (!connection.due.empty()) {
        store::ParkedRequest parked = std::move(connection.due.front());
        connection.due.pop_front();
        answer_parked(std::move(parked));
        continue;
      }
      auto request = connection.session.next();
      if (!request) return false;
      answer(number, connection, *std::move(request));
    }
    return true;
  }

  void answer(std::uint64_t number, Connection& connection, store::Message request) {
    if (request.code == store::Code::on_disconnect) {
      connection.session.send(connection.on_disconnect.add(request));
      return;
    }
    if (request.code == store::Code::session) return begin_session(connection, request);
    if (answer_again(connection, request)) return;
    store::Outcome outcome = store::execute(table_, request);
    note(connection, request, outcome);
    if (outcome.reply) {
      connection.session.send(*outcome.reply);
      if (!outcome.written.empty()) answer_ready(outcome.written);
    } else if (!parked_.has_room(number, request)) {
      connection.session.send(
          {request.id, store::Code::refused, 0, {"store: too many waiting requests"}});
    } else {
      Deadline deadline = timeout_of(request);
      parked_.add({number, std::move(request), deadline}, table_);
    }
  }

  void begin_session(Connection& connection, const store::Message& request) {
    if (request.parts.size() != 1 || request.parts[0].size() != store::session_bytes)
      throw BadInput("store: a session without a name");
    take_over(connection, request.parts[0]);
    connection.session.send({request.id, store::Code::done, 0, {store_name_}});
  }

  // A client that reconnects has lost its previous connection, even if this server has not noticed
  // yet: the on-disconnect values of that connection must not be written while the client lives.
  void take_over(Connection& connection, const std::string& client) {
    for (auto& [number, other] : connections_) {
      if (&other == &connection || other.client != client) continue;
      connection.on_disconnect = std::exchange(other.on_disconnect, {});
      other.closing = true;
    }
    connection.client = client;
  }

  // Answers a repeated request with the remembered reply: a reconnected client does not know
  // whether the request was executed.
  [[nodiscard]] bool answer_again(Connection& connection, const store::Message& request) {
    if (connection.client.empty() || !store::writes(request.code)) return false;
    const store::Message* known = sessions_.find(connection.client, request.id);
    if (known != nullptr) connection.session.send(*known);
    return known != nullptr;
  }

  void note(const Connection& connection, const store::Message& request,
            const store::Outcome& outcome) {
    if (!store::writes(request.code)) return;
    if (!connection.client.empty()) sessions_.remember(connection.client, *outcome.reply);
    if (!log_) return;
    if (outcome.reply->code == store::Code::done) log_->note_key(request.parts[0]);
    if (!connection.client.empty()) log_->note_reply(connection.client, *outcome.reply);
  }

  void answer_ready(const std::string& key) {
    for (store::ParkedRequest& parked : parked_.take_ready(key, table_)) {
      answer_parked(std::move(parked));
    }
  }

  void answer_late() {
    for (const store::ParkedRequest& parked : parked_.take_late()) {
      reply_to(parked.connection,
               {parked.request.id, store::Code::late, 0, table_.missing(parked.request.parts)});
    }
  }

  void write(const store::DisconnectValues& values) {
    for (const auto& [key, value] : values.values()) {
      if (table_.find(key) != nullptr) continue;
      try {
        table_.set(key, value);
      } catch (const BadInput& error) {
        log::warning(
            "store at {}: cannot set the value that a client left for the end of its connection: "
            "{}",
            address_, error.what());
        continue;
      }
      if (log_) log_->note_key(key);
      answer_ready(key);
    }
    if (log_) commit_log();
  }

  void answer_parked(store::ParkedRequest parked) {
    auto place = connections_.find(parked.connection);
    if (place == connections_.end()) return;
    Connection& connection = place->second;
    if (connection.session.output().size() >= much_output_bytes) {
      connection.due.push_back(std::move(parked));
      return;
    }
    store::Outcome outcome = store::execute(table_, parked.request);
    if (outcome.reply) {
      connection.session.send(*outcome.reply);
    } else {
      parked_.add(std::move(parked), table_);  // the key was erased meanwhile
    }
  }

  void reply_to(std::uint64_t number, const store::Message& reply) {
    auto place = connections_.find(number);
    if (place != connections_.end()) place->second.session.send(reply);
  }

  void close_finished() {
    std::vector<store::DisconnectValues> left;
    std::erase_if(connections_, [&](auto& entry) {
      auto& [number, connection] = entry;
      bool overdue = !connection.session.proven() && connection.handshake_deadline.passed();
      if (!connection.closing && !overdue) return false;
      parked_.drop_connection(number);
      if (!connection.on_disconnect.values().empty())
        left.push_back(std::move(connection.on_disconnect));
      return true;
    });
    for (const store::DisconnectValues& values : left) write(values);
  }

  StoreServerOptions options_;
  sys::ForkAware process_;
  store::StoreKey key_;
  std::string address_;
  std::uint16_t port_ = 0;
  sys::PrivateDescriptor listener_;
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
  Deadline next_shortage_line_ = Deadline::after(Duration::zero());
  std::uint64_t refused_ = 0;  // since the last log line about refusals
  sys::Thread thread_;
};

StoreServer::StoreServer(StoreServerOptions options) {
  check(options.max_unproven > 0, "StoreServer: max_unproven must be at least 1, found {}",
        options.max_unproven);
  sys::SocketAddress address = sys::SocketAddress::of(options.host, options.port);
  check_input(!options.secret.empty() || address.is_loopback(),
              "store at {}: a store that other hosts can reach needs a secret: set "
              "StoreServerOptions::secret",
              address.text());
  sys::PrivateDescriptor listener(sys::listen_on(address));
  loop_ = std::make_unique<Loop>(std::move(options), std::move(listener));
}

StoreServer::~StoreServer() {
  if (loop_->is_copy_of_parent()) (void)loop_.release();  // the child has no thread to join
}

std::uint16_t StoreServer::port() const { return loop_->port(); }

bool StoreServer::serves() const { return loop_->serves(); }

std::string StoreServer::address() const { return loop_->address(); }

}  // namespace lockstep
