// Unusable rendezvous addresses: each gives a one-line error that names MASTER_ADDR.
#include "comm/init/run_store.h"

#include <lockstep/base/error.h>

#include "support/messages.h"
#include "support/processes.h"
#include "sys/sockets.h"

#include <c10/util/intrusive_ptr.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sched.h>

using namespace lockstep;
using namespace std::chrono_literals;
using test::expect_words;
using test::message_of;

namespace {

MasterAddress master_at(const std::string& host, std::uint16_t port = 29500) {
  return {host, port, Deadline::after(300ms)};
}

// Runs `body` in a process whose loopback interface is down, if the system allows such a process.
void without_loopback(const std::function<void()>& body) {
  test::expect_ranks(1, [&](int) {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return;
    body();
  });
}

TEST(MasterAddress, ANameThatNobodyKnowsIsNamed) {
  const auto begin = Clock::now();
  expect_words(message_of<BadInput>([] { static_cast<void>(master_at("no-such-host.invalid")); }),
               {"MASTER_ADDR: looking up host 'no-such-host.invalid'"});
  EXPECT_LT(Clock::now() - begin, 30s);
}

TEST(MasterAddress, MayStandInBrackets) {
  EXPECT_EQ(master_at("[127.0.0.1]").host(), "127.0.0.1");
  EXPECT_EQ(master_at("[::1]").host(), "::1");
}

TEST(MasterAddress, ALinkLocalOneNeedsItsInterface) {
  expect_words(message_of<BadInput>([] { static_cast<void>(master_at("fe80::1")); }),
               {"MASTER_ADDR: host 'fe80::1'", "needs its interface", "fe80::1%eth0"});
  EXPECT_EQ(master_at("[fe80::1%lo]").host(), "fe80::1%lo");
}

TEST(MasterAddress, FindsTheStoreOfC10d) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  for (const bool use_libuv : {true, false}) {
    options.useLibUV = use_libuv;
    const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    const auto master = master_at("localhost", store->getPort());
    EXPECT_NO_THROW(master.check_own());
    EXPECT_NO_THROW(master.wait_for_store(1, "rank 0", Deadline::after(10s)));
    const std::vector<std::uint8_t> value{1, 2};
    store->set("key", value);  // it still serves
    EXPECT_EQ(store->get("key"), value);
  }
}

// A server that is not the store, until the end of its life. Its `serve` returns when it has served
// a connection.
class Stranger {
 public:
  explicit Stranger(std::function<void(const sys::FileDescriptor&)> serve)
      : thread_([this, serve = std::move(serve)](const std::stop_token& stop) {
          std::vector<sys::FileDescriptor> open;
          while (!stop.stop_requested()) {
            if (!sys::wait_ready(listener_.get(), POLLIN, Deadline::after(20ms))) continue;
            auto socket = sys::accept_now(listener_.get());
            if (!socket) continue;
            if (!serve) {
              open.push_back(std::move(socket));  // silent
              continue;
            }
            serve(socket);
          }
        }) {}
  [[nodiscard]] MasterAddress address() const {
    return master_at("127.0.0.1", sys::SocketAddress::local(listener_.get()).port());
  }

 private:
  sys::FileDescriptor listener_ = sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0));
  std::jthread thread_;
};

TEST(MasterAddress, AnotherServerIsNamedAtOnce) {
  const auto begin = Clock::now();
  for (const char* answer : {"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n"}) {
    const Stranger stranger([answer](const sys::FileDescriptor& socket) {
      sys::send_all(socket.get(), sys::bytes_of(answer), Deadline::after(1s));
    });
    expect_words(message_of<BadInput>(
                     [&] { stranger.address().wait_for_store(1, "rank 0", Deadline::after(60s)); }),
                 {"rank 1: MASTER_ADDR:MASTER_PORT, 127.0.0.1:",
                  "expected the store of the run, found another server"});
  }
  EXPECT_LT(Clock::now() - begin, 10s);
}

// A balancer of a cluster may close connections until rank 0 is there.
TEST(MasterAddress, AServerThatClosesConnectionsIsWaitedForAndNamed) {
  const Stranger stranger([](const sys::FileDescriptor&) {});
  expect_words(message_of<Timeout>(
                   [&] { stranger.address().wait_for_store(1, "rank 0", Deadline::after(300ms)); }),
               {"rank 1 timed out connecting to MASTER_ADDR:MASTER_PORT, 127.0.0.1:",
                "rank 0 did not arrive; a server there closes the connection"});
}

TEST(MasterAddress, AServerThatSaysNothingIsNamedBeforeTheDeadline) {
  const auto begin = Clock::now();
  const Stranger stranger(nullptr);
  expect_words(message_of<Timeout>(
                   [&] { stranger.address().wait_for_store(1, "rank 0", Deadline::after(10min)); }),
               {"rank 1: MASTER_ADDR:MASTER_PORT, 127.0.0.1:",
                "a server there takes connections and does not answer"});
  EXPECT_LT(Clock::now() - begin, 60s);
}

TEST(MasterAddress, SaysWhoDidNotArrive) {
  const auto port = [] {
    const auto closed = sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0));
    return sys::SocketAddress::local(closed.get()).port();
  }();
  const auto master = master_at("127.0.0.1", port);
  expect_words(message_of<Timeout>([&] {
                 master.wait_for_store(1, "rank 0, which listens there,", Deadline::after(300ms));
               }),
               {"rank 1 timed out connecting to MASTER_ADDR:MASTER_PORT, 127.0.0.1:",
                "rank 0, which listens there, did not arrive"});
}

TEST(MasterAddress, SaysAtOnceThatTheLoopbackInterfaceIsDown) {
  without_loopback([] {
    const auto begin = Clock::now();
    const auto master = master_at("127.0.0.1");
    expect_words(message_of<BadInput>([&] { master.check_own(); }),
                 {"rank 0: MASTER_ADDR cannot be reached", "is the loopback interface up?"});
    expect_words(
        message_of<BadInput>([&] { master.wait_for_store(1, "rank 0", Deadline::after(60s)); }),
        {"rank 1: MASTER_ADDR cannot be reached", "is the loopback interface up?"});
    EXPECT_LT(Clock::now() - begin, 10s);
  });
}

}  // namespace
