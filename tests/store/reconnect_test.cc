// Clients that reconnect to a server that was restarted with its log.
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>
#include "store/relay.h"
#include "support/cuttable_relay.h"
#include "support/free_port.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/soon.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::message_of;
using test::soon;

class Reconnect : public testing::Test {
 protected:
  // Retries, because the system may briefly give the port to another connection.
  [[nodiscard]] std::unique_ptr<StoreServer> serve(bool with_log = true) const {
    StoreServerOptions options{.port = port_, .secret = "swordfish"};
    if (with_log) options.log = folder_ / "store.log";
    for (const Deadline limit = soon();; std::this_thread::sleep_for(10ms)) {
      try {
        return std::make_unique<StoreServer>(options);
      } catch (const BadInput& error) {
        const bool taken =
            std::string(error.what()).find("the port is in use") != std::string::npos;
        if (!taken || limit.passed()) throw;
      }
    }
  }
  [[nodiscard]] TcpStoreOptions client(Duration reconnect = 20s) const {
    return {.host = "127.0.0.1",
            .port = port_,
            .secret = "swordfish",
            .connect_timeout = 20s,
            .reconnect = reconnect};
  }

  test::TemporaryFolder folder_;
  std::uint16_t port_ = test::free_port();
};

TEST_F(Reconnect, CallsGoOnWithAServerThatWasStartedAnew) {
  auto server = serve();
  TcpStore store(client());
  store.set("key", "before");
  EXPECT_EQ(store.add("number", 3), 3);
  server.reset();
  std::thread later([&] {
    std::this_thread::sleep_for(200ms);
    server = serve();
  });
  EXPECT_EQ(store.add("number", 4), 7);
  later.join();
  EXPECT_EQ(store.get("key", soon()), "before");
  server.reset();
  server = serve();
  EXPECT_EQ(store.keys(""), (std::vector<std::string>{"key", "number"}));
}

TEST_F(Reconnect, AWaitThatIsUnderWayGoesOn) {
  auto server = serve();
  TcpStore waits(client()), sets(client());
  std::thread waiting([&] { EXPECT_EQ(waits.get("late", soon()), "here"); });
  std::this_thread::sleep_for(100ms);
  server.reset();
  server = serve();
  sets.set("late", "here");
  waiting.join();
}

TEST_F(Reconnect, WhatAClientLeavesForItsEndIsSaidAgain) {
  auto server = serve();
  TcpStore watches(client());
  auto leaves = std::make_unique<TcpStore>(client());
  leaves->set_on_disconnect("gone", "it has");
  server.reset();
  server = serve();
  leaves->set("here", "still");
  EXPECT_FALSE(watches.try_get("gone"));
  leaves.reset();
  EXPECT_EQ(watches.get("gone", soon()), "it has");
}

// The server notices the end of the old connection later than the client.
TEST_F(Reconnect, AClientThatHasConnectedAgainIsNotGone) {
  auto server = serve();
  TcpStore watches(client());
  auto relay = std::make_unique<test::CuttableRelay>(port_);
  TcpStoreOptions through = client();
  through.port = relay->port();
  auto leaves = std::make_unique<TcpStore>(through);
  leaves->set_on_disconnect("gone", "it has");
  relay->close_to_clients();
  leaves->set("here", "again");
  relay->close_to_server();
  watches.set("a round trip", "later");
  EXPECT_FALSE(watches.try_get("gone"));
  leaves.reset();
  relay.reset();
  EXPECT_EQ(watches.get("gone", soon()), "it has");
}

TEST_F(Reconnect, WithoutALogTheServerIsAnother) {
  auto server = serve(false);
  TcpStore store(client());
  store.set("key", "value");
  server.reset();
  server = serve(false);
  EXPECT_EQ(message_of<PeerLost>([&] { (void)store.try_get("key"); }),
            "store at 127.0.0.1:" + std::to_string(port_) +
                " has gone: store at 127.0.0.1:" + std::to_string(port_) +
                " is not the one from before: it was started again without the log of the first "
                "one (--log)");
}

TEST_F(Reconnect, AServerThatDoesNotComeBackIsLost) {
  auto server = serve();
  TcpStore store(client(300ms));
  store.set("key", "value");
  server.reset();
  const auto text = message_of<PeerLost>([&] {
    for (;;) {
      try {
        store.set("key", "value");
      } catch (const Timeout&) {
      }
    }
  });
  EXPECT_NE(text.find("could not be reached again within 300ms"), std::string::npos) << text;
}

// Each add must count once, however often the connection breaks between request and reply.
TEST_F(Reconnect, ARequestThatIsSentAgainIsDoneOnce) {
  constexpr int threads = 3, adds = 60;
  std::atomic<bool> done = false;
  auto server = serve();
  std::thread breaks([&] {
    while (!done) {
      std::this_thread::sleep_for(15ms);
      server.reset();
      server = serve();
    }
  });
  std::vector<std::thread> counts;
  for (int thread = 0; thread < threads; ++thread)
    counts.emplace_back([&] {
      TcpStore store(client());
      for (int i = 0; i < adds; ++i) store.add("sum", 1);
    });
  for (std::thread& thread : counts) thread.join();
  done = true;
  breaks.join();
  EXPECT_EQ(TcpStore(client()).get("sum", soon()), std::to_string(threads * adds));
}

// Same, but the server is killed at arbitrary points.
TEST_F(Reconnect, KilledServersForgetNothingThatTheyHaveAnswered) {
  constexpr int kills = 8;
  std::atomic<bool> done = false, ended = false;
  std::atomic<std::int64_t> answered = 0;
  auto servers = std::make_unique<test::RankProcesses>(1, [&](int) {
    auto server = serve();
    std::this_thread::sleep_for(60s);
  });
  std::thread kill([&] {
    for (int i = 0; i < kills; ++i) {
      const std::int64_t before = answered;
      std::this_thread::sleep_for(30ms);
      for (const Deadline limit = soon(); answered == before && !limit.passed();)
        std::this_thread::sleep_for(1ms);
      servers.reset();  // sends SIGKILL
      servers = std::make_unique<test::RankProcesses>(1, [&](int) {
        auto server = serve();
        std::this_thread::sleep_for(60s);
      });
    }
    done = true;
    while (!ended) std::this_thread::sleep_for(1ms);  // the last server ends with this thread
  });
  try {
    TcpStore store(client());
    while (!done) {
      const std::int64_t sum = store.add("sum", 1);
      EXPECT_EQ(sum, answered + 1);
      ++answered;
      store.set("copy", std::to_string(sum));
      EXPECT_EQ(store.get("copy", soon()), std::to_string(sum));
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  ended = true;
  kill.join();
  EXPECT_GE(answered, kills);
}

// The server stops reading while its reply is not read, so the client must read while it sends.
TEST_F(Reconnect, ALargeReplyAndALargeRequestPassEachOther) {
  const std::string value(std::size_t{32} << 20, 'v');
  auto server = serve();
  TcpStoreOptions options = client(60s);
  TcpStore store(options);
  store.set("first", value);
  server.reset();
  std::thread gets([&] { EXPECT_NO_THROW(EXPECT_TRUE(store.get("first", soon()) == value)); });
  std::this_thread::sleep_for(100ms);
  std::thread sets([&] { EXPECT_NO_THROW(store.set("second", value)); });
  std::this_thread::sleep_for(100ms);
  server = serve();
  gets.join();
  sets.join();
  EXPECT_TRUE(store.get("second", soon()) == value);
}

TEST_F(Reconnect, TheAddressSaysSo) {
  auto server = serve();
  const std::string at = "tcp://127.0.0.1:" + std::to_string(port_);
  const auto store = open_store(at + "?reconnect=20s", "swordfish", 20s);
  store->set("key", "value");
  server.reset();
  server = serve();
  EXPECT_EQ(store->get("key", soon()), "value");
  EXPECT_THROW((void)open_store(at + "?reconnect=soon", "swordfish", 1s), BadInput);
  EXPECT_THROW((void)open_store(at + "?reconnect=-1s", "swordfish", 1s), BadInput);
}

}  // namespace
}  // namespace lockstep
