#include "comm/shm/hand_over.h"

#include <lockstep/base/check.h>
#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/shm/group_block.h"
#include "sys/descriptor_passing.h"
#include "sys/sockets.h"

#include <array>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::shm {
namespace {

// What the two ends of a connection tell each other, beside a descriptor.
struct Greeting {
  static constexpr std::uint64_t right_magic = 0x6b636f6c6d6873;  // "shmlock"
  static constexpr std::uint32_t right_version =
      3;  // of everything in this folder that lies in shared memory

  std::uint64_t magic = right_magic;
  std::uint32_t version = right_version;
  std::uint32_t size = 0;
  std::uint32_t rank = 0;
  std::uint32_t reserved = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t world_block = 0;
  std::uint64_t control_address = 0;
};

std::string random_name() {
  std::random_device random;
  return formatted("lockstep-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// Any user of the host can connect to an abstract name.
bool is_of_this_user(int socket) { return sys::peer_credentials(socket).uid == geteuid(); }

class Meeting {
 public:
  Meeting(Store& store, const std::string& prefix, int rank, int size, const Arena& arena,
          std::uint64_t world_block, Deadline deadline)
      : store_(store),
        prefix_(prefix),
        rank_(rank),
        size_(size),
        arena_(arena),
        deadline_(deadline),
        peers_(size),
        world_block_(world_block) {}

  void run();
  [[nodiscard]] std::vector<Peer> take_peers() { return std::move(peers_); }
  [[nodiscard]] std::uint64_t world_block() const { return world_block_; }

 private:
  [[nodiscard]] std::string key(int rank) const { return formatted("{}rank/{}", prefix_, rank); }
  void connect_to(int rank);
  void accept_one();
  // `expected`: the rank at the other end, -1 when it is still to be learned.
  void greet(sys::FileDescriptor socket, int expected);
  [[nodiscard]] int check_greeting(const Greeting& theirs, int expected) const;
  void check_places(const Greeting& theirs) const;
  [[noreturn]] void throw_timeout() const;

  Store& store_;
  const std::string& prefix_;
  int rank_;
  int size_;
  const Arena& arena_;
  Deadline deadline_;
  sys::FileDescriptor listener_;
  std::vector<Peer> peers_;
  std::uint64_t world_block_;
};

void Meeting::run() {
  auto name = random_name();
  listener_ = sys::listen_on(sys::SocketAddress::abstract(name));
  store_.set(key(rank_), name);
  try {
    for (int lower = 0; lower < rank_; ++lower) connect_to(lower);
    for (int higher = rank_ + 1; higher < size_; ++higher) accept_one();
  } catch (const Timeout&) {
    throw_timeout();
  }
}

void Meeting::connect_to(int rank) {
  auto name = store_.get(key(rank), deadline_);
  try {
    greet(sys::connect_to(sys::SocketAddress::abstract(name), deadline_), rank);
  } catch (const PeerLost&) {
    throw PeerLost(formatted("shared memory: rank {} ended while ranks were joining", rank));
  }
}

void Meeting::accept_one() {
  try {
    auto socket = sys::accept_one(listener_.get(), deadline_);
    while (!is_of_this_user(socket.get())) socket = sys::accept_one(listener_.get(), deadline_);
    greet(std::move(socket), -1);
  } catch (const PeerLost&) {
    throw PeerLost(
        formatted("shared memory: a rank above {} ended while ranks were joining", rank_));
  }
}

void Meeting::greet(sys::FileDescriptor socket, int expected) {
  auto credentials = sys::peer_credentials(socket.get());
  check_input(credentials.uid == geteuid(),
              "shared memory: expected a peer of user {}, found user {}", geteuid(),
              credentials.uid);
  // Opened before the peer's greeting arrives, which shows that the process behind the number was
  // still the right one.
  sys::FileDescriptor process(
      credentials.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)) : -1);
  Greeting ours;
  ours.size = static_cast<std::uint32_t>(size_);
  ours.rank = static_cast<std::uint32_t>(rank_);
  ours.arena_bytes = arena_.bytes();
  ours.world_block = world_block_;
  ours.control_address = reinterpret_cast<std::uint64_t>(&arena_.control());
  std::array<int, 1> file{arena_.file()};
  sys::send_descriptors(socket.get(), std::as_bytes(std::span(&ours, 1)), file, deadline_);
  Greeting theirs;
  auto files = sys::receive_descriptors(socket.get(), std::as_writable_bytes(std::span(&theirs, 1)),
                                        1, deadline_);
  int rank = check_greeting(theirs, expected);
  if (rank == 0) world_block_ = theirs.world_block;
  peers_[rank] = {credentials.pid, std::move(process), std::move(socket),
                  std::make_shared<sys::SharedMemory>(
                      sys::SharedMemory::open(std::move(files[0]), theirs.arena_bytes)),
                  theirs.control_address};
}

int Meeting::check_greeting(const Greeting& theirs, int expected) const {
  check_input(theirs.magic == Greeting::right_magic && theirs.version == Greeting::right_version,
              "shared memory: expected a peer that speaks version {}, found {}",
              Greeting::right_version, theirs.version);
  check_input(theirs.size == static_cast<std::uint32_t>(size_),
              "shared memory: rank {} expects a world of {} ranks, found that rank {} expects {}",
              rank_, size_, theirs.rank, theirs.size);
  auto rank = static_cast<int>(theirs.rank);
  bool right = expected >= 0 ? rank == expected : rank > rank_ && rank < size_;
  check_input(right, "shared memory: rank {} expected {}, found a peer that says it is rank {}",
              rank_, expected >= 0 ? formatted("rank {}", expected) : std::string("a higher rank"),
              rank);
  check_input(!peers_[rank].socket, "shared memory: two processes say that they are rank {}", rank);
  check_places(theirs);
  return rank;
}

// What will be read without further checks lies in the peer's memory.
void Meeting::check_places(const Greeting& theirs) const {
  const std::uint64_t block = theirs.rank == 0 ? GroupBlock::bytes(size_) : 0;
  const std::uint64_t most = std::uint64_t{1} << 48;  // an address space
  check_input(theirs.arena_bytes >= sizeof(Control) + block && theirs.arena_bytes <= most &&
                  theirs.world_block <= theirs.arena_bytes - block && theirs.world_block % 64 == 0,
              "shared memory: expected places in the arena of rank {}, found {} bytes and block {}",
              theirs.rank, theirs.arena_bytes, theirs.world_block);
}

void Meeting::throw_timeout() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && !peers_[rank].socket && !store_.try_get(key(rank)))
      missing.push_back(rank);
  }
  if (missing.empty()) {  // they published a name and then said no more
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !peers_[rank].socket) missing.push_back(rank);
    }
  }
  throw Timeout(formatted("shared memory: rank {} of {} waited for {}, which never came", rank_,
                          size_, rank_list(missing)));
}

}  // namespace

HandOver hand_over(Store& store, const std::string& prefix, int rank, int size,
                   std::shared_ptr<Arena> arena, std::uint64_t world_block, Deadline deadline) {
  Meeting meeting(store, prefix, rank, size, *arena, world_block, deadline);
  meeting.run();
  std::uint64_t block = meeting.world_block();
  return {Peers(rank, std::move(arena), meeting.take_peers()), block};
}

}  // namespace lockstep::shm
