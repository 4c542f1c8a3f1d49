// A server with peers that do not know the secret, are slow, or send garbage.
#include <lockstep/store/store_server.h>

#include <lockstep/store/tcp_store.h>

#include "store/conversation.h"
#include "support/free_port.h"
#include "support/processes.h"
#include "support/sanitizers.h"
#include "support/soon.h"
#include "support/temporary_folder.h"
#include "sys/sockets.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::soon;

constexpr std::size_t greeting_bytes = 40;
constexpr std::size_t answer_bytes = 56;

sys::FileDescriptor connect(const StoreServer& server) {
  return sys::connect_to(sys::SocketAddress::tcp("127.0.0.1", server.port()), soon());
}

std::string receive_text(int socket, std::size_t size) {
  std::string text(size, '\0');
  sys::receive_exact(socket, std::as_writable_bytes(std::span(text)), soon());
  return text;
}

// Returns true if the server closes the connection within 20 s, after any number of bytes.
bool is_closed(int socket) {
  std::string buffer(4096, '\0');
  try {
    for (;;) {
      auto count = sys::receive_now(socket, std::as_writable_bytes(std::span(buffer)));
      if (!count && !sys::wait_ready(socket, POLLIN, soon())) return false;
    }
  } catch (const PeerLost&) {
    return true;
  }
}

class Server : public testing::Test {
 protected:
  void expect_still_serving() {
    auto start = Clock::now();
    TcpStore store({.port = server_.port(), .secret = "swordfish", .connect_timeout = 20s});
    store.set("key", "value");
    EXPECT_EQ(store.get("key", soon()), "value");
    EXPECT_LT(Clock::now() - start, 10s);
  }

  // Connects and completes the handshake of a client that knows the secret.
  sys::FileDescriptor proven(store::TestClient& client) {
    auto socket = connect(server_);
    std::string proof = client.prove(receive_text(socket.get(), greeting_bytes));
    sys::send_all(socket.get(), sys::bytes_of(proof), soon());
    std::string header = client.begin(receive_text(socket.get(), answer_bytes));
    sys::send_all(socket.get(), sys::bytes_of(header), soon());
    return socket;
  }

  StoreServer server_{{.secret = "swordfish", .handshake_timeout = 1s, .max_unproven = 8}};
};

TEST_F(Server, ConnectionsThatSayNothingAreClosed) {
  auto silent = connect(server_);
  auto half = connect(server_);
  sys::send_all(half.get(), sys::bytes_of("LSSTORE1"), soon());
  expect_still_serving();
  EXPECT_TRUE(is_closed(silent.get()));
  EXPECT_TRUE(is_closed(half.get()));
}

TEST_F(Server, SlowBytesDoNotExtendTheHandshake) {
  auto slow = connect(server_);
  auto start = Clock::now();
  bool closed = false;
  while (!closed && Clock::now() - start < 20s) {
    try {
      sys::send_all(slow.get(), sys::bytes_of("x"), soon());
      std::this_thread::sleep_for(20ms);
    } catch (const PeerLost&) {
      closed = true;
    }
  }
  EXPECT_TRUE(closed);
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_F(Server, GarbageIsAnsweredWithTheSameRefusal) {
  for (std::size_t size : {72, 73, 1000}) {
    auto socket = connect(server_);
    (void)receive_text(socket.get(), greeting_bytes);
    sys::send_all(socket.get(), sys::bytes_of(std::string(size, 'x')), soon());
    if (size == 72) {
      EXPECT_EQ(receive_text(socket.get(), answer_bytes), std::string(answer_bytes, '\0'));
    }
    EXPECT_TRUE(is_closed(socket.get())) << size;
  }
  expect_still_serving();
}

TEST_F(Server, ManyConnectionsWithoutProofKeepNobodyOut) {
  std::vector<sys::FileDescriptor> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(connect(server_));
  expect_still_serving();
  const auto closed = std::ranges::count_if(idle, [](const sys::FileDescriptor& socket) {
    pollfd entry{socket.get(), POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP)) != 0;
  });
  EXPECT_GE(closed, 40) << "8 may be there without proof";
}

TEST_F(Server, AFrameOutOfRangeClosesOnlyItsConnection) {
  store::TestClient client("swordfish");
  for (const char* length : {"\xff\xff\xff\xff", "\x01\x00\x00\x00"}) {
    auto socket = proven(client);
    sys::send_all(socket.get(), sys::bytes_of(std::string(length, 4) + std::string(64, 'x')),
                  soon());
    EXPECT_TRUE(is_closed(socket.get()));
  }
  expect_still_serving();
}

TEST_F(Server, AHalfSentFrameStallsNobody) {
  store::TestClient client("swordfish");
  auto socket = proven(client);
  std::string frame = client.seal({1, store::Code::set, 0, {"a", std::string(100'000, 'v')}});
  sys::send_all(socket.get(), sys::bytes_of(frame.substr(0, 50'000)), soon());
  expect_still_serving();
  sys::send_all(socket.get(), sys::bytes_of(frame.substr(50'000)), soon());
  std::string reply = receive_text(socket.get(), 4 + 17 + 21);
  EXPECT_EQ(client.open(reply.substr(4)).code, store::Code::done);
}

TEST_F(Server, AClientThatNeverReadsStallsNobody) {
  TcpStore store({.port = server_.port(), .secret = "swordfish", .connect_timeout = 20s});
  store.set("large", std::string(1'000'000, 'v'));
  store::TestClient client("swordfish");
  auto socket = proven(client);
  constexpr int requests = 50;  // far more than fits into buffers
  std::string frames;
  for (int i = 0; i < requests; ++i) {
    frames += client.seal({static_cast<std::uint64_t>(i), store::Code::get, 0, {"large"}});
  }
  sys::send_all(socket.get(), sys::bytes_of(frames), soon());
  expect_still_serving();
  for (int i = 0; i < requests; ++i) {  // once the client reads, every reply arrives
    std::string reply = receive_text(socket.get(), 4 + 17 + 21 + 4 + 1'000'000);
    EXPECT_EQ(client.open(reply.substr(4)).id, static_cast<std::uint64_t>(i));
  }
}

TEST_F(Server, TooManyWaitsOfOneClientAreRefused) {
  store::TestClient client("swordfish");
  auto socket = proven(client);
  std::string frames;
  for (int i = 0; i < 5000; ++i) {
    frames += client.seal({static_cast<std::uint64_t>(i), store::Code::get, 60'000'000'000, {"a"}});
  }
  sys::send_all(socket.get(), sys::bytes_of(frames), soon());
  std::string length = receive_text(socket.get(), 4);
  std::string sealed = receive_text(socket.get(), static_cast<unsigned char>(length[0]));
  store::Message reply = client.open(sealed);
  EXPECT_EQ(reply.code, store::Code::refused);
  EXPECT_EQ(reply.id, 4096u);
  expect_still_serving();
}

TEST(StoreServer, RunningOutOfDescriptorsIsSurvived) {
  if (test::under_undefined_behavior_sanitizer)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer itself needs descriptors";
  test::expect_ranks(1, [](int) {
    StoreServer server({.secret = "swordfish"});
    rlimit limit{40, 40};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    std::vector<sys::FileDescriptor> sockets;
    try {
      for (int i = 0; i < 40; ++i) sockets.push_back(connect(server));
      ADD_FAILURE() << "descriptors did not run out";
    } catch (const SystemError&) {
      std::this_thread::sleep_for(50ms);
    }
    sockets.clear();
    TcpStore store({.port = server.port(), .secret = "swordfish", .connect_timeout = 20s});
    store.set("key", "value");
  });
}

// Peers without the secret open more connections than the server has descriptors.
TEST(StoreServer, SilentConnectionsDoNotKeepTheLastDescriptors) {
  if (test::under_undefined_behavior_sanitizer)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer itself needs descriptors";
  const std::uint16_t port = test::free_port();
  const test::RankProcesses server(1, [&](int) {
    const rlimit limit{40, 40};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    const StoreServer low({.port = port, .secret = "swordfish", .handshake_timeout = 60s});
    for (;;) ::pause();
  });
  const auto address = sys::SocketAddress::tcp("127.0.0.1", port);
  std::vector<sys::FileDescriptor> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(sys::connect_to(address, soon()));
  TcpStore store({.port = port, .secret = "swordfish", .connect_timeout = 5s});
  store.set("key", "value");
  EXPECT_EQ(store.get("key", soon()), "value");
}

// As after a program has lowered its limit: poll() then refuses all connections together.
TEST(StoreServer, ALimitBelowItsConnectionsIsSurvived) {
  if (test::under_undefined_behavior_sanitizer)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer itself needs descriptors";
  test::expect_ranks(1, [](int) {
    const StoreServer server({.secret = "swordfish", .handshake_timeout = 60s});
    TcpStore store({.port = server.port(), .secret = "swordfish", .connect_timeout = 20s});
    std::vector<sys::FileDescriptor> silent;
    for (int i = 0; i < 30; ++i) silent.push_back(connect(server));
    store.set("key", "value");
    const rlimit limit{20, 20};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    store.set("key", "other");
    EXPECT_EQ(store.get("key", soon()), "other");
    EXPECT_TRUE(server.serves());
  });
}

// Like a data-loading worker that is still there when its parent ends the server.
TEST(StoreServer, AForkedChildDoesNotKeepItsSocketsAndItsLog) {
  test::TemporaryFolder folder;
  StoreServerOptions options{.secret = "swordfish", .log = folder / "log"};
  std::optional<StoreServer> server(std::in_place, options);
  options.port = server->port();
  TcpStore client({.port = options.port, .secret = "swordfish", .connect_timeout = 20s});
  auto waiting =
      std::async(std::launch::async, [&] { return client.get("never", Deadline::after(3s)); });
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const test::RankProcesses child(1, [&](int) {
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
    for (;;) ::pause();
  });
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1) << "the child has closed its copies";
  server.reset();
  EXPECT_THROW(static_cast<void>(waiting.get()), PeerLost);
  server.emplace(options);
  EXPECT_TRUE(server->serves());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(StoreServer, AddressAndPortAgree) {
  StoreServer server(StoreServerOptions{});
  EXPECT_EQ(server.address(), "127.0.0.1:" + std::to_string(server.port()));
  EXPECT_THROW(StoreServer({.max_unproven = 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
