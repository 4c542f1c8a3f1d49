// Processes that connect to an arena exchange but are not ranks. Messages with the token but wrong
// content are refused with an error; messages without the token are dropped; messages of another
// user are not even read.
#include "comm/backends/shm/endpoint.h"
#include "support/fuzz.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "sys/shared_memory.h"
#include "sys/sockets.h"

#include <lockstep/base/error.h>
#include <lockstep/store/file_store.h>
#include <lockstep/store/memory_store.h>

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using shm::Endpoint;

constexpr std::size_t size_place = 12, rank_place = 16;  // offsets in a greeting
constexpr std::size_t token_place = 24, arena_bytes_place = 56;
constexpr std::size_t greeting_bytes = 72;
constexpr std::size_t arena = 4 << 20;

shm::EndpointOptions fuzz_options() {
  return {.timeout = 5s, .join_timeout = 5s, .arena_bytes = arena};
}

struct Published {
  std::string name, token;
};

Published rank_0(Store& store) {
  const std::string text = store.get("shm/1/rank/0", Deadline::after(10s));
  return {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
}

sys::FileDescriptor connect_to_rank_0(Store& store) {
  return sys::connect_to(sys::SocketAddress::abstract(rank_0(store).name), Deadline::after(10s));
}

// Returns the greeting of rank 0; the kernel closes the descriptor that comes with it.
std::string receive_greeting(int socket) {
  std::string bytes(256, '\0');
  if (!sys::wait_ready(socket, POLLIN, Deadline::after(10s))) return {};
  auto size = ::recv(socket, bytes.data(), bytes.size(), 0);
  bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return bytes;
}

template <class Number>
void put(std::string& bytes, std::size_t place, Number number) {
  if (bytes.size() >= place + sizeof(number)) {
    std::memcpy(bytes.data() + place, &number, sizeof(number));
  }
}

// Returns the correct greeting of rank 1 of 2 with this token.
std::string right_greeting(const std::string& token) {
  std::string greeting(greeting_bytes, '\0');
  put(greeting, 0, std::uint64_t{0x6b636f6c6d6873});
  put(greeting, 8, std::uint32_t{5});
  put(greeting, size_place, std::uint32_t{2});
  put(greeting, rank_place, std::uint32_t{1});
  greeting.replace(token_place, token.size(), token);
  put(greeting, arena_bytes_place, std::uint64_t{arena});
  return greeting;
}

// Returns memory that is correct, too small, or can shrink; or a file that is no memory; or no
// file, or two.
std::vector<sys::FileDescriptor> some_files(Random& random) {
  std::vector<sys::FileDescriptor> files;
  auto sealed = [] {
    return sys::FileDescriptor(::dup(sys::SharedMemory::create("fuzz", arena).file()));
  };
  switch (below(random, 8)) {
    case 0:
      break;
    case 1:
      files.push_back(sealed());
      files.push_back(sealed());
      break;
    case 2:
      files.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
      break;
    case 3:
      files.emplace_back(::dup(sys::SharedMemory::create("fuzz", 4096).file()));
      break;
    case 4:
      files.emplace_back(::memfd_create("fuzz", MFD_CLOEXEC));
      if (::ftruncate(files.back().get(), arena) != 0) files.clear();
      break;
    default:
      files.push_back(sealed());
  }
  return files;
}

// Returns a possibly wrong greeting of a process that pretends to be rank 1.
std::string some_greeting(std::string greeting, Random& random) {
  if (one_in(random, 8)) put(greeting, rank_place, static_cast<std::uint32_t>(random()));
  constexpr std::uint64_t sizes[] = {0, 1, 64, 4096, arena + 1, std::uint64_t{1} << 47, ~0ULL};
  if (one_in(random, 4)) put(greeting, arena_bytes_place, sizes[below(random, std::size(sizes))]);
  return one_in(random, 3) ? mutated(greeting, random) : greeting;
}

void say(int socket, const std::string& greeting, const std::vector<sys::FileDescriptor>& files) {
  std::vector<int> numbers;
  for (const auto& file : files) numbers.push_back(file.get());
  if (greeting.empty()) return;
  sys::send_descriptors(socket, std::as_bytes(std::span(greeting)), numbers, Deadline::after(10s));
}

void pretend(Store& store, Random& random) {
  try {
    auto socket = connect_to_rank_0(store);
    say(socket.get(), some_greeting(right_greeting(rank_0(store).token), random),
        some_files(random));
    if (one_in(random, 2)) std::this_thread::sleep_for(1ms);
  } catch (const Error&) {
    return;  // the rank has closed the connection
  }
}

// Joins correctly as rank 1, if rank 0 still waits for it.
void come_in_order(Store& store) {
  try {
    const auto at = sys::SocketAddress::abstract(rank_0(store).name);
    auto socket = sys::try_connect(at, Deadline::after(10s));
    if (!socket) return;
    std::vector<sys::FileDescriptor> files;
    files.emplace_back(::dup(sys::SharedMemory::create("fuzz", arena).file()));
    say(socket.get(), right_greeting(rank_0(store).token), files);
    static_cast<void>(receive_greeting(socket.get()));
  } catch (const Error&) {
    return;
  }
}

TEST(ArenaExchangeFuzz, GreetingsAreAcceptedOrRefused) {
  std::uint64_t accepted = 0, refused = 0;
  FuzzRounds rounds("greetings", 10);
  while (rounds.next()) {
    auto store = std::make_shared<MemoryStore>();
    auto start = Clock::now();
    std::thread rank([&] {
      try {
        Endpoint endpoint(store, 0, 2, fuzz_options());
        ++accepted;
      } catch (const Error&) {
        ++refused;
      }
    });
    pretend(*store, rounds.random());
    come_in_order(*store);
    rank.join();
    EXPECT_LT(Clock::now() - start, 4s);  // no rank waits until its deadline
  }
  if (!rounds.enough()) return;
  EXPECT_GT(accepted, rounds.count() / 4);
  EXPECT_GT(refused, rounds.count() / 20);
}

// Connects as a process of the same user that knows the socket's name but not the token.
void disturb(const std::string& name, int kind) {
  auto socket = sys::connect_to(sys::SocketAddress::abstract(name), Deadline::after(10s));
  if (kind == 1)
    sys::send_all(socket.get(), sys::bytes_of(std::string(48, 'x')), Deadline::never());
  if (kind == 2) {
    std::vector<sys::FileDescriptor> files;
    files.emplace_back(::dup(sys::SharedMemory::create("fuzz", arena).file()));
    say(socket.get(), right_greeting(std::string(32, '0')), files);
    EXPECT_EQ(receive_greeting(socket.get()), "") << "a stranger got an arena";
  }
  if (kind == 3) static_cast<void>(socket.release());  // silent, and never closed
}

TEST(ArenaExchange, StrayConnectionsOfTheSameUserDisturbNoRank) {
  for (int kind = 0; kind < 4; ++kind) {
    auto store = std::make_shared<MemoryStore>();
    std::vector<std::thread> ranks;
    std::vector<std::string> ends(3, "joined");
    const auto join = [&](int rank) {
      try {
        Endpoint endpoint(store, rank, 3, fuzz_options());
      } catch (const Error& error) {
        ends[rank] = error.what();
      }
    };
    const auto start = Clock::now();
    ranks.emplace_back(join, 0);
    for (int i = 0; i < 100; ++i) disturb(rank_0(*store).name, kind);
    ranks.emplace_back(join, 1);
    ranks.emplace_back(join, 2);
    for (auto& rank : ranks) rank.join();
    for (const auto& end : ends) EXPECT_EQ(end, "joined") << "kind " << kind;
    EXPECT_LT(Clock::now() - start, 4s);
  }
}

TEST(ArenaExchange, AnotherUserCannotDisturbTheRanks) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TemporaryFolder folder;
  ::chmod(folder.path().c_str(), 0755);
  expect_ranks(3, [&](int rank) {
    auto store = std::make_shared<FileStore>(folder.path() / "store");
    if (rank == 2) {
      auto soon = Deadline::after(10s);
      auto name = rank_0(*store).name;
      ASSERT_EQ(::setuid(65534), 0);
      std::vector<sys::FileDescriptor> sockets;
      for (int i = 0; i < 5; ++i) {
        sockets.push_back(sys::connect_to(sys::SocketAddress::abstract(name), soon));
      }
      EXPECT_EQ(receive_greeting(sockets[0].get()), "");
      return;
    }
    if (rank == 1) std::this_thread::sleep_for(200ms);
    Endpoint endpoint(store, rank, 2, fuzz_options());
  });
}

}  // namespace
}  // namespace lockstep::test
