#include "comm/backends/shm/arena_exchange.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/backends/shm/shared_group_state.h"
#include "sys/process.h"
#include "sys/random_bytes.h"
#include "sys/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep::shm {
namespace {

// 128 random bits as text.
using Token = std::array<char, 32>;

// The greeting that the two ends of a connection exchange, together with a descriptor.
struct Greeting {
  static constexpr std::uint64_t right_magic = 0x6b636f6c6d6873;  // "shmlock"
  static constexpr std::uint32_t right_version =
      5;  // of all shared-memory structures of this folder

  std::uint64_t magic = right_magic;
  std::uint32_t version = right_version;
  std::uint32_t size = 0;
  std::uint32_t rank = 0;
  std::uint32_t reserved = 0;
  Token token{};  // of the rank that accepts the connection
  std::uint64_t arena_bytes = 0;
  std::uint64_t world_block = 0;
};

Token random_token() {
  Token token{};
  std::ranges::copy(sys::hexadecimal(sys::random_bytes(token.size() / 2)), token.begin());
  return token;
}

// The text that a rank publishes in the store: "NAME TOKEN". Every process of the host can list the
// names of abstract sockets; only processes that may read the store learn the token.
struct Published {
  std::string name;
  Token token{};

  [[nodiscard]] std::string text() const {
    return formatted("{} {}", name, std::string_view(token.data(), token.size()));
  }
  static Published read(const std::string& text, int rank) {
    const std::size_t space = text.find(' ');
    Published published{.name = text.substr(0, space)};
    check_input(space != std::string::npos && text.size() == space + 1 + published.token.size(),
                "shared memory: expected a name and a token of rank {} in the store, found '{}'",
                rank, escaped(text, 100));
    std::copy(text.begin() + static_cast<std::ptrdiff_t>(space) + 1, text.end(),
              published.token.begin());
    return published;
  }
};

std::span<const std::byte> bytes_of(const Greeting& greeting) {
  return std::as_bytes(std::span(&greeting, 1));
}

// The process at the other end of a connection.
struct Caller {
  explicit Caller(sys::FileDescriptor connection)
      : socket(std::move(connection)), pid(sys::peer_credentials(socket.get()).pid) {
    if (pid <= 0) return;
    try {
      process = sys::open_pidfd(pid);
    } catch (const SystemError&) {
      // The process has ended; has_left() reports that.
    }
  }
  // Returns true if the process has closed the connection. If not, its pid was still valid when the
  // pidfd was opened.
  [[nodiscard]] bool has_left() const {
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

  sys::FileDescriptor socket;
  pid_t pid;
  sys::FileDescriptor process;
};

struct Received {
  Greeting greeting;
  sys::FileDescriptor arena;
};

Received receive(int socket, Deadline deadline) {
  Received received;
  auto files = sys::receive_descriptors(
      socket, std::as_writable_bytes(std::span(&received.greeting, 1)), 1, deadline);
  received.arena = std::move(files[0]);
  return received;
}

constexpr std::size_t most_strangers = 64;
constexpr int milliseconds_between_questions = 200;
constexpr int newcomers_a_turn = 16;  // accepted before sockets with data are served

// Any user of the host can connect to an abstract socket.
bool is_of_this_user(int socket) { return sys::peer_credentials(socket).uid == geteuid(); }

class ArenaExchange {
 public:
  ArenaExchange(Store& store, const std::string& prefix, int rank, int size, const Arena& arena,
                std::uint64_t world_block, Deadline deadline)
      : store_(store),
        prefix_(prefix),
        rank_(rank),
        size_(size),
        arena_(arena),
        deadline_(deadline),
        peers_(size),
        world_block_(world_block) {}

  void run() {
    const Token name = random_token();
    const Published own{formatted("lockstep-{}", std::string_view(name.data(), name.size())),
                        token_};
    listener_ = sys::listen_on(sys::SocketAddress::abstract(own.name));
    store_.set(key(rank_), own.text());
    try {
      for (int lower = 0; lower < rank_; ++lower) connect_to(lower);
      accept_higher();
    } catch (const Timeout&) {
      throw_timeout();
    }
  }

  [[nodiscard]] std::vector<Peer> take_peers() { return std::move(peers_); }
  [[nodiscard]] std::uint64_t world_block() const { return world_block_; }

 private:
  [[nodiscard]] std::string key(int rank) const { return formatted("{}rank/{}", prefix_, rank); }
  // Connects to a rank that has published its name. Such a rank listens until it ends; if it has
  // ended, the store may know the reason.
  [[nodiscard]] sys::FileDescriptor connected(const Published& peer) const {
    const auto address = sys::SocketAddress::abstract(peer.name);
    const auto turn = std::chrono::milliseconds(milliseconds_between_questions);
    for (;;) {
      try {
        return sys::connect_to(address, deadline_.or_sooner(Deadline::after(turn)));
      } catch (const Timeout&) {
        if (deadline_.passed()) throw;
        ask_store();
      }
    }
  }

  void connect_to(int rank) {
    const auto published = Published::read(store_.get(key(rank), deadline_), rank);
    try {
      // The pidfd is opened before the process answers, so the answer proves that the pidfd is of
      // the right process.
      Caller caller(connected(published));
      auto user = sys::peer_credentials(caller.socket.get()).uid;
      check_input(user == geteuid(), "shared memory: expected a peer of user {}, found user {}",
                  geteuid(), user);
      send(caller.socket.get(), greeting(published.token));
      auto received = receive(caller.socket.get(), deadline_);
      const int found = check_greeting(received.greeting, rank);
      if (found == 0) world_block_ = received.greeting.world_block;
      take(found, std::move(caller), std::move(received));
    } catch (const PeerLost&) {
      throw PeerLost(formatted("shared memory: rank {} ended while ranks were joining", rank));
    }
  }

  // Any process can connect. A process that sends the token is a rank and gets this rank's arena.
  // Other connections are closed when they send anything else or end; until then they delay no
  // rank.
  void accept_higher() {
    missing_ = size_ - 1 - rank_;
    while (missing_ > 0) {
      std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
      for (const auto& stranger : strangers_) entries.push_back({stranger.socket.get(), POLLIN, 0});
      const int ready = ::poll(entries.data(), entries.size(),
                               deadline_.poll_milliseconds(milliseconds_between_questions));
      if (ready < 0 && errno != EINTR)
        throw SystemError("waiting for the ranks of this host", errno);
      if (deadline_.passed()) throw Timeout("shared memory: not all ranks have connected");
      if (ready == 0) ask_store();
      std::vector<Caller> silent;
      for (std::size_t i = 0; i < strangers_.size(); ++i) {
        Caller& caller = strangers_[i];
        if (entries[i + 1].revents == 0) {
          silent.push_back(std::move(caller));
        } else if (auto received = hear(caller.socket.get())) {
          welcome(std::move(caller), *std::move(received));
        }
      }
      strangers_ = std::move(silent);
      if (entries[0].revents != 0) take_newcomers();
    }
  }

  // Throws PeerLost if the store has gone, or if the wrapper of the store
  // (rendezvous/meeting.h) knows that the missing ranks will not join. Asks for a key that no
  // rank sets.
  void ask_store() const {
    try {
      static_cast<void>(store_.get(key(size_), Deadline::after(Duration::zero())));
    } catch (const Timeout&) {
      // Expected: the store answers, and the ranks may still join.
    }
  }

  void take_newcomers() {
    for (int i = 0; i < newcomers_a_turn; ++i) {
      auto socket = sys::accept_now(listener_.get());
      if (!socket) return;
      if (is_of_this_user(socket.get())) strangers_.emplace_back(std::move(socket));
      // A rank sends its greeting as soon as it has connected: so if there are many silent
      // connections, the oldest is not a rank.
      if (strangers_.size() > most_strangers) strangers_.erase(strangers_.begin());
    }
  }

  // Returns a rank's greeting, which arrives as a whole; std::nullopt for any other data.
  [[nodiscard]] std::optional<Received> hear(int socket) const {
    try {
      auto received = receive(socket, Deadline::after(Duration::zero()));
      if (received.greeting.token == token_) return received;
      log::debug("shared memory: a process connected that is not a rank of this run");
    } catch (const Error& error) {
      log::debug("shared memory: a connection that does not belong to a rank: {}", error.what());
    }
    return std::nullopt;
  }

  // The token has shown that the caller is a rank. If it has left before it got an answer, or sent
  // invalid values, throws.
  void welcome(Caller caller, Received received) {
    try {
      if (caller.has_left()) throw PeerLost("the other side has closed the connection");
      send(caller.socket.get(), greeting(token_));
    } catch (const PeerLost&) {
      throw PeerLost(
          formatted("shared memory: a rank above {} ended while ranks were joining", rank_));
    }
    const int rank = check_greeting(received.greeting, -1);
    take(rank, std::move(caller), std::move(received));
    --missing_;
  }

  [[nodiscard]] Greeting greeting(const Token& token) const {
    Greeting ours;
    ours.size = static_cast<std::uint32_t>(size_);
    ours.rank = static_cast<std::uint32_t>(rank_);
    ours.token = token;
    ours.arena_bytes = arena_.bytes();
    ours.world_block = world_block_;
    return ours;
  }

  void send(int socket, const Greeting& ours) const {
    const std::array<int, 1> file{arena_.file()};
    sys::send_descriptors(socket, bytes_of(ours), file, deadline_);
  }

  void take(int rank, Caller caller, Received received) {
    peers_[rank] = {caller.pid, std::move(caller.process), std::move(caller.socket),
                    std::make_shared<sys::SharedMemory>(sys::SharedMemory::open(
                        std::move(received.arena), received.greeting.arena_bytes, rank))};
  }

  // `expected`: the rank at the other end, -1 if it is unknown.
  [[nodiscard]] int check_greeting(const Greeting& theirs, int expected) const {
    check_input(theirs.magic == Greeting::right_magic && theirs.version == Greeting::right_version,
                "shared memory: expected a peer that speaks version {}, found {}",
                Greeting::right_version, theirs.version);
    check_input(theirs.size == static_cast<std::uint32_t>(size_),
                "shared memory: the size of the world differs: rank {} has {}, rank {} has {}",
                rank_, size_, theirs.rank, theirs.size);
    auto rank = static_cast<int>(theirs.rank);
    bool right = expected >= 0 ? rank == expected : rank > rank_ && rank < size_;
    check_input(
        right, "shared memory: rank {} expected {}, found a peer that says it is rank {}", rank_,
        expected >= 0 ? formatted("rank {}", expected) : std::string("a higher rank"), rank);
    check_input(!peers_[rank].socket, "shared memory: two processes say that they are rank {}",
                rank);
    check_places(theirs);
    return rank;
  }

  // Checks that data which is read without further checks lies in the peer's memory.
  void check_places(const Greeting& theirs) const {
    const std::uint64_t block = theirs.rank == 0 ? GroupBlock::bytes(size_) : 0;
    const std::uint64_t most = std::uint64_t{1} << 48;  // an address space
    check_input(
        theirs.arena_bytes >= sizeof(ControlPage) + block && theirs.arena_bytes <= most &&
            theirs.world_block <= theirs.arena_bytes - block && theirs.world_block % 64 == 0,
        "shared memory: expected places in the arena of rank {}, found {} bytes and block {}",
        theirs.rank, theirs.arena_bytes, theirs.world_block);
  }

  [[noreturn]] void throw_timeout() const {
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !peers_[rank].socket && !store_.try_get(key(rank)))
        missing.push_back(rank);
    }
    if (missing.empty()) {  // all ranks published a name, but some stopped responding
      for (int rank = 0; rank < size_; ++rank) {
        if (rank != rank_ && !peers_[rank].socket) missing.push_back(rank);
      }
    }
    throw Timeout(formatted("shared memory: rank {} of {} timed out waiting for {} to connect",
                            rank_, size_, rank_list(missing)));
  }

  Store& store_;
  const std::string& prefix_;
  int rank_;
  int size_;
  const Arena& arena_;
  Deadline deadline_;
  sys::FileDescriptor listener_;
  Token token_ = random_token();
  std::vector<Caller> strangers_;  // connections that have sent nothing yet
  int missing_ = 0;                // higher ranks that have not joined
  std::vector<Peer> peers_;
  std::uint64_t world_block_;
};

}  // namespace

ExchangedArenas exchange_arenas(Store& store, const std::string& prefix, int rank, int size,
                                std::shared_ptr<Arena> arena, std::uint64_t world_block,
                                Deadline deadline) {
  ArenaExchange exchange(store, prefix, rank, size, *arena, world_block, deadline);
  exchange.run();
  std::uint64_t block = exchange.world_block();
  return {PeerMappings(rank, std::move(arena), exchange.take_peers()), block};
}

}  // namespace lockstep::shm
