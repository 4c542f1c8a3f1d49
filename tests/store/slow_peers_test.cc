// Slow, silent and too many peers, while an honest client counts and measures.
#include "store/raw_peer.h"

#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;

constexpr auto long_enough = 20s;

// Calls `action` repeatedly in its own thread until the object is destroyed.
class InBackground {
 public:
  explicit InBackground(std::function<void()> action)
      : thread_([this, action = std::move(action)] {
          while (!stopping_) action();
        }) {}
  ~InBackground() {
    stopping_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

class SlowPeers : public testing::Test {
 protected:
  [[nodiscard]] std::uint16_t port() const { return server_.port(); }
  [[nodiscard]] TcpStoreOptions honest() const {
    return {.port = port(), .secret = "secret", .connect_timeout = long_enough};
  }

  // Measures how long the honest client waits for one call, in the median and at worst.
  void expect_prompt_service(std::chrono::milliseconds time) {
    TcpStore store(honest());
    std::vector<Duration> waits;
    for (auto end = Clock::now() + time; Clock::now() < end;) {
      auto start = Clock::now();
      EXPECT_EQ(store.add("count", 1), static_cast<std::int64_t>(waits.size()) + 1);
      waits.push_back(Clock::now() - start);
    }
    std::ranges::sort(waits);
    EXPECT_LT(waits.at(waits.size() / 2), 100ms);
    EXPECT_LT(waits.back(), 5s);
  }

  StoreServer server_{{.secret = "secret", .handshake_timeout = 10s, .max_unproven = 32}};
};

TEST_F(SlowPeers, OneByteAtATimeStallsNobody) {
  std::vector<std::unique_ptr<RawPeer>> outsiders, insiders;
  std::vector<std::string> frames;
  for (int i = 0; i < 16; ++i) outsiders.push_back(std::make_unique<RawPeer>(port()));
  for (int i = 0; i < 16; ++i) {
    TestClient client("secret");
    insiders.push_back(std::make_unique<RawPeer>(port()));
    insiders.back()->begin(client);
    frames.push_back(client.seal({1, Code::set, 0, {"slow", std::string(1000, 'v')}}));
  }
  std::size_t place = 0;
  InBackground drip([&] {
    for (auto& peer : outsiders) {
      if (place + 1 < proof_part_bytes) peer->send("x");
    }
    for (std::size_t i = 0; i < insiders.size(); ++i) {
      if (place + 1 < frames[i].size()) insiders[i]->send(frames[i].substr(place, 1));
    }
    ++place;
    std::this_thread::sleep_for(2ms);
  });
  expect_prompt_service(400ms);
}

TEST_F(SlowPeers, AFloodOfConnectionsStallsNobody) {
  std::vector<std::unique_ptr<InBackground>> floods;
  for (int i = 0; i < 2; ++i) {
    floods.push_back(std::make_unique<InBackground>([this] {
      std::vector<std::unique_ptr<RawPeer>> peers;
      for (int number = 0; number < 40; ++number) {
        peers.push_back(std::make_unique<RawPeer>(port()));
      }
    }));
  }
  for (int round = 0; round < 3; ++round) {
    auto start = Clock::now();
    TcpStore store(honest());
    EXPECT_EQ(store.add("count", 1), round + 1);
    EXPECT_LT(Clock::now() - start, 10s);
  }
}

// Opens 3,000 connections per second for a while and keeps the last 300 open.
class Crowd {
 public:
  Crowd(std::uint16_t port, const char* from)
      : thread_([this, port, from] {
          std::vector<sys::FileDescriptor> held(300);
          const auto start = Clock::now();
          for (int number = 0; number < most && !stopping_; ++number) {
            held[number % 300] = connected(port, from);
            std::this_thread::sleep_until(start + number * 1s / 3000);
          }
        }) {}
  ~Crowd() {
    stopping_ = true;
    thread_.join();
  }

 private:
  static constexpr int most = 15'000;

  static sys::FileDescriptor connected(std::uint16_t port, const char* from) {
    sys::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto own = sys::SocketAddress::tcp(from, 0),
               to = sys::SocketAddress::tcp("127.0.0.1", port);
    if (::bind(socket.get(), own.get(), own.size()) != 0 ||
        ::connect(socket.get(), to.get(), to.size()) != 0)
      return {};
    return socket;
  }

  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// Returns how many tries a client needs until it is proven, over a connection with a latency of 25
// ms.
int tries_of_a_distant_client(std::uint16_t port) {
  for (int tries = 1; tries < 200; ++tries) {
    try {
      TestClient client("secret");
      RawPeer peer(port);
      const std::string greeting = peer.receive(greeting_bytes);
      std::this_thread::sleep_for(50ms);
      peer.send(client.prove(greeting));
      peer.send(client.begin(peer.receive(answer_bytes)));
      return tries;
    } catch (const PeerLost&) {
      continue;
    }
  }
  return 200;
}

TEST(DistantPeer, IsLetInThoughAnotherAddressFloodsTheServer) {
  StoreServer server({.secret = "secret", .max_unproven = 64});
  const Crowd crowd(server.port(), "127.0.0.2");
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(tries_of_a_distant_client(server.port()), 1);
}

// Each try succeeds with a probability of about one half.
TEST(DistantPeer, IsLetInThoughItsOwnAddressFloodsTheServer) {
  StoreServer server({.secret = "secret"});
  const Crowd crowd(server.port(), "127.0.0.1");
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(tries_of_a_distant_client(server.port()), 40);
}

TEST(MuchInTheStore, IsRefusedBeyondTheBound) {
  StoreServer server({.secret = "secret", .max_bytes = 10 << 20});
  TcpStore store({.port = server.port(), .secret = "secret", .connect_timeout = long_enough});
  const std::string value(1 << 20, 'v');
  int held = 0;
  const auto fill = [&] {
    for (; held < 20; ++held) store.set("key" + std::to_string(held), value);
  };
  EXPECT_THROW(fill(), BadInput);
  EXPECT_EQ(held, 9);
  EXPECT_THROW(store.compare_set("other", "", value), BadInput);
  store.set("key0", "little");
  store.set("other", value);
  EXPECT_TRUE(store.erase("other"));
  store.set("other", value);
}

// Each peer sends most of a large request, and then nothing.
TEST(MuchInTheStore, RequestsThatNeverEndAreBounded) {
  StoreServer server({.secret = "secret", .max_bytes = 8 << 20});
  std::vector<std::unique_ptr<RawPeer>> peers;
  int closed = 0;
  for (int i = 0; i < 12; ++i) {
    TestClient client("secret");
    peers.push_back(std::make_unique<RawPeer>(server.port()));
    peers.back()->begin(client);
    const std::string frame = client.seal({1, Code::set, 0, {"k", std::string(4 << 20, 'v')}});
    peers.back()->send(frame.substr(0, frame.size() - 1));
  }
  std::this_thread::sleep_for(200ms);
  for (const auto& peer : peers) {
    pollfd entry{peer->socket(), POLLIN, 0};
    closed += ::poll(&entry, 1, 2000) > 0;
  }
  EXPECT_GE(closed, 10);
  TcpStore store({.port = server.port(), .secret = "secret", .connect_timeout = long_enough});
  EXPECT_EQ(store.add("count", 1), 1) << "others are served";
}

TEST_F(SlowPeers, RepliesThatNobodyTakesNeedNoMemory) {
  constexpr std::size_t waits = 60;
  constexpr std::size_t value_bytes = 1 << 20;
  TcpStore store(honest());
  TestClient client("secret");
  RawPeer lazy(port());
  lazy.begin(client);
  for (std::uint64_t id = 0; id < waits; ++id) {
    lazy.send(client.seal({id, Code::get, 60'000'000'000, {"large"}}));
  }
  lazy.send(client.seal({waits, Code::add, 1, {"asked"}}));
  EXPECT_EQ(store.get("asked", Deadline::after(long_enough)), "1");
  auto before = resident_bytes();
  store.set("large", std::string(value_bytes, 'v'));
  EXPECT_EQ(store.add("count", 1), 1);
  if (!is_sanitized) EXPECT_LT(resident_bytes(), before + (32 << 20));

  std::vector<bool> answered(waits + 1);
  for (std::size_t i = 0; i <= waits; ++i) {  // once the peer reads, every reply arrives
    Message reply = client.open(lazy.receive_sealed());
    EXPECT_EQ(reply.code, Code::done);
    answered.at(reply.id) = true;
  }
  EXPECT_EQ(std::ranges::count(answered, true), std::ssize(answered));
}

TEST_F(SlowPeers, RequestsThatWaitHaveABound) {
  TestClient client("secret");
  RawPeer greedy(port());
  greedy.begin(client);
  std::vector<std::string> keys(2000, std::string(4000, 'k'));
  for (std::uint64_t id = 0; id < 5; ++id) {
    greedy.send(client.seal({id, Code::wait, 60'000'000'000, keys}));
  }
  Message reply = client.open(greedy.receive_sealed());
  EXPECT_EQ(reply.code, Code::refused);
  EXPECT_EQ(reply.id, 4u);  // 8 MB each, and at most 32 MiB may wait
  expect_prompt_service(50ms);
}

}  // namespace
}  // namespace lockstep::store
