// Errors between a client and its server.
#include <lockstep/store/tcp_store.h>

#include <lockstep/store/store_server.h>

#include "store/relay.h"
#include "support/free_port.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/sockets.h"
#include "support/soon.h"
#include "sys/socket_address.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>

#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::message_of;
using test::soon;

TcpStoreOptions client_of(std::uint16_t port, std::string secret = "swordfish") {
  return {.host = "127.0.0.1", .port = port, .secret = std::move(secret), .connect_timeout = 20s};
}

TEST(TcpStore, AWrongSecretIsRefused) {
  StoreServer server({.secret = "swordfish"});
  for (const char* secret : {"Swordfish", "", "swordfish "}) {
    EXPECT_EQ(message_of<BadInput>([&] { TcpStore store(client_of(server.port(), secret)); }),
              "store at " + server.address() +
                  " refused the secret: the server and its clients must have the same secret");
  }
  TcpStore store(client_of(server.port()));
  store.set("key", "value");
}

TEST(TcpStore, WithoutASecretOnlyThisHostMayCome) {
  StoreServer server(StoreServerOptions{});
  TcpStore(client_of(server.port(), "")).set("key", "value");
  auto text = message_of<BadInput>([] { StoreServer open({.host = "0.0.0.0"}); });
  EXPECT_NE(text.find("needs a secret"), std::string::npos) << text;
  StoreServer everywhere({.host = "0.0.0.0", .secret = "swordfish"});
  TcpStore(client_of(everywhere.port())).set("key", "value");
}

TEST(TcpStore, AServerAtAllAddressesTakesBothKinds) {
  StoreServer everywhere({.host = sys::all_addresses(), .secret = "swordfish"});
  TcpStoreOptions options = client_of(everywhere.port());
  TcpStore four(options);
  four.set("key", "value");
  options.host = "::1";
  const std::vector<std::string> own = sys::own_addresses();
  if (std::ranges::find(own, options.host) == own.end())
    GTEST_SKIP() << "the loopback interface has no IPv6 address";
  EXPECT_EQ(TcpStore(options).get("key", soon()), "value");
}

TEST(TcpStore, APortInUseIsSaidSo) {
  StoreServer server({.secret = "swordfish"});
  EXPECT_EQ(message_of<BadInput>([&] { StoreServer second({.port = server.port()}); }),
            "listening on " + server.address() + ": the port is in use by another process");
}

TEST(TcpStore, NobodyThereIsATimeout) {
  TcpStoreOptions options = client_of(test::free_port());
  options.connect_timeout = 50ms;
  auto text = message_of<Timeout>([&] { TcpStore store(options); });
  EXPECT_NE(text.find("timed out"), std::string::npos) << text;
}

TEST(TcpStore, AServerMayStartLater) {
  std::uint16_t port = test::free_port();
  std::unique_ptr<StoreServer> server;
  std::thread starter([&] {
    std::this_thread::sleep_for(50ms);
    server = std::make_unique<StoreServer>(StoreServerOptions{.port = port, .secret = "swordfish"});
  });
  TcpStore store(client_of(port));
  starter.join();
  store.set("key", "value");
  EXPECT_EQ(TcpStore(client_of(server->port())).get("key", soon()), "value");
}

TEST(TcpStore, WhatIsNoStoreIsSaidSo) {
  auto listener = sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0));
  auto address = sys::SocketAddress::local(listener.get());
  std::thread server([&] {
    auto connection = test::accept_one(listener.get(), soon());
    std::string page = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    sys::send_all(connection.get(), sys::bytes_of(page), soon());
    (void)sys::wait_ready(connection.get(), POLLIN, soon());
  });
  EXPECT_EQ(message_of<BadInput>([&] { TcpStore store(client_of(address.port())); }),
            address.text() + " is not a Lockstep store");
  server.join();

  TcpStoreOptions options = client_of(address.port());
  options.connect_timeout = 50ms;
  // accepts the connection but sends nothing
  auto text = message_of<Timeout>([&] { TcpStore store(options); });
  EXPECT_NE(text.find("takes connections but does not answer"), std::string::npos) << text;
}

TEST(TcpStore, AServerThatDoesNotKnowTheSecretIsNoticed) {
  StoreServer server({.secret = "swordfish"});
  test::Relay relay(server.port(), [](std::size_t before, std::string& piece) {
    if (before == 40) piece[0] = static_cast<char>(piece[0] ^ 1);  // a byte of the server's proof
  });
  auto text = message_of<BadInput>([&] { TcpStore store(client_of(relay.port())); });
  EXPECT_NE(text.find("could not prove that it knows the secret"), std::string::npos) << text;
}

TEST(TcpStore, OthersOnTheWireSeeNothing) {
  StoreServer server({.secret = "swordfish"});
  test::Relay relay(server.port());
  {
    TcpStore store(client_of(relay.port()));
    store.set("hidden key", "hidden value");
    EXPECT_EQ(store.get("hidden key", soon()), "hidden value");
  }
  for (const char* word : {"swordfish", "hidden"}) {
    EXPECT_EQ(relay.to_server().find(word), std::string::npos) << word;
    EXPECT_EQ(relay.to_client().find(word), std::string::npos) << word;
  }
  EXPECT_GT(relay.to_server().size(), 100u);
}

TEST(TcpStore, AChangedReplyIsNeverBelieved) {
  StoreServer server({.secret = "swordfish"});
  TcpStore(client_of(server.port())).set("key", "value");
  test::Relay relay(server.port(), [](std::size_t before, std::string& piece) {
    if (before >= 96) piece.back() = static_cast<char>(piece.back() ^ 1);
  });
  TcpStore store(client_of(relay.port()));
  EXPECT_THROW((void)store.get("key", soon()), PeerLost);
  EXPECT_THROW((void)store.get("key", soon()), PeerLost);
}

TEST(TcpStore, AnOldConversationSentAgainIsRefused) {
  StoreServer server({.secret = "swordfish"});
  test::Relay relay(server.port());
  TcpStore(client_of(relay.port())).set("key", "first");
  TcpStore store(client_of(server.port()));
  store.set("key", "second");

  auto socket = sys::connect_to(sys::SocketAddress::tcp("127.0.0.1", server.port()), soon());
  sys::send_all(socket.get(), sys::bytes_of(relay.to_server()), soon());
  std::string answer(40 + 56, 'x');
  try {
    sys::receive_exact(socket.get(), std::as_writable_bytes(std::span(answer)), soon());
    EXPECT_EQ(answer.substr(40), std::string(56, '\0'));
  } catch (const PeerLost&) {
    // The server closed the connection while more bytes were arriving: the refusal may be lost with
    // it.
  }
  EXPECT_EQ(store.get("key", soon()), "second");
}

TEST(TcpStore, ABlockedGetHoldsUpNobody) {
  StoreServer server({.secret = "swordfish"});
  TcpStore store(client_of(server.port()));
  std::atomic<int> woken = 0;
  std::vector<std::thread> blocked;
  for (int i = 0; i < 3; ++i) {
    blocked.emplace_back([&, i] {
      EXPECT_EQ(store.get("late" + std::to_string(i), soon()), "value");
      ++woken;
    });
  }
  for (int i = 0; i < 100; ++i) store.add("count", 1);
  EXPECT_EQ(woken, 0);
  for (int i = 2; i >= 0; --i) store.set("late" + std::to_string(i), "value");
  for (std::thread& thread : blocked) thread.join();
  EXPECT_EQ(store.get("count", soon()), "100");
}

// Each thread gets its own replies, although one thread sends and one reads for all: also if some
// calls time out, and while another call waits all the time.
TEST(TcpStore, ManyThreadsShareAConnection) {
  StoreServer server({.secret = "swordfish"});
  for (const Duration reconnect : {Duration::zero(), Duration(20s)}) {
    TcpStoreOptions options = client_of(server.port());
    options.reconnect = reconnect;
    TcpStore store(options);
    store.erase("last");
    std::thread waiting([&] { EXPECT_EQ(store.get("last", soon()), "value"); });
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 12; ++thread)
      threads.emplace_back([&, key = std::to_string(thread)] {
        for (int i = 0; i < 40; ++i) {
          const std::string value(static_cast<std::size_t>(i * 97), key[0]);
          store.set(key, value);
          EXPECT_EQ(store.get(key, soon()), value);
          if (i % 8 == 0)
            EXPECT_THROW((void)store.get("none", Deadline::after(Duration::zero())), Timeout);
        }
      });
    for (std::thread& thread : threads) thread.join();
    store.set("last", "value");
    waiting.join();
  }
}

// A caller that gets the turn to send while it becomes the reader must send, too.
TEST(TcpStore, TheTurnToSendIsNeverForgotten) {
  constexpr int threads = 16, adds = 2000;
  StoreServer server({.secret = "swordfish"});
  TcpStoreOptions options = client_of(server.port());
  options.call_timeout = 5s;
  TcpStore store(options);
  std::vector<std::thread> counts;
  for (int thread = 0; thread < threads; ++thread)
    counts.emplace_back([&] {
      EXPECT_NO_THROW({
        for (int i = 0; i < adds; ++i) store.add("sum", 1);
      });
    });
  for (std::thread& thread : counts) thread.join();
  EXPECT_EQ(store.get("sum", soon()), std::to_string(threads * adds));
}

TEST(TcpStore, AServerThatEndsIsPeerLost) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.secret = "swordfish"});
  std::string address = server->address();
  TcpStore store(client_of(server->port()));
  std::thread closer([&] {
    std::this_thread::sleep_for(50ms);
    server.reset();
  });
  auto text = message_of<PeerLost>([&] { (void)store.get("key", soon()); });
  closer.join();
  EXPECT_EQ(text.find("store at " + address + " has gone"), 0u) << text;
  EXPECT_THROW(store.set("key", "value"), PeerLost);
}

TEST(TcpStore, WaitsEndThoughTheServerIsStuck) {
  // A server in its own process that completes the handshake and is then stopped.
  std::uint16_t port = test::free_port();
  test::RankProcesses server(1, [&](int) {
    StoreServer stopped({.port = port, .secret = "swordfish"});
    for (;;) ::pause();
  });
  TcpStoreOptions options = client_of(port);
  options.call_timeout = 1500ms;
  TcpStore store(options);
  store.set("key", "value");
  server.kill(0, SIGSTOP);
  auto start = Clock::now();
  EXPECT_THROW((void)store.get("missing", Deadline::after(50ms)), Timeout);
  EXPECT_THROW(store.set("key", "other"), Timeout);
  EXPECT_LT(Clock::now() - start, 10s);
  server.kill(0, SIGCONT);
  EXPECT_NO_THROW((void)store.keys(""));
  server.kill(0, SIGKILL);
  EXPECT_THROW((void)store.get("missing", soon()), PeerLost);
}

TEST(TcpStore, ProcessesMeetAndSeeTheirServerDie) {
  for (int ranks : {2, 3, 5}) {
    std::uint16_t port = test::free_port();
    auto results = test::run_ranks(ranks, [&](int rank) {
      std::unique_ptr<StoreServer> server;
      if (rank == 0) {
        server =
            std::make_unique<StoreServer>(StoreServerOptions{.port = port, .secret = "swordfish"});
      }
      TcpStore store(client_of(port));
      store.set("rank/" + std::to_string(rank), "here");
      for (int peer = 0; peer < ranks; ++peer) {
        EXPECT_EQ(store.get("rank/" + std::to_string(peer), soon()), "here");
      }
      store.add("done", 1);
      if (rank == 0) {
        while (store.get("done", soon()) != std::to_string(ranks)) ::usleep(1000);
        ::raise(SIGKILL);
      }
      EXPECT_THROW((void)store.get("never", soon()), PeerLost);
    });
    EXPECT_EQ(results[0].signal, SIGKILL);
    for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(results[rank].ok()) << results[rank];
  }
}

TEST(TcpStore, AForkedChildCannotUseItsParentsConnection) {
  StoreServer server({.secret = "swordfish"});
  auto store = std::make_unique<TcpStore>(client_of(server.port()));
  test::expect_ranks(1, [&](int) {
    EXPECT_THROW(store->set("key", "value"), InvalidArgument);
    store.reset();
  });
  store->set("key", "value");
}

}  // namespace
}  // namespace lockstep
