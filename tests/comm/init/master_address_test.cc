// Unusable rendezvous addresses: each gives a one-line error that names MASTER_ADDR within seconds.
#include "comm/init/run_store.h"

#include <lockstep/base/error.h>

#include "support/messages.h"
#include "support/processes.h"
#include "sys/sockets.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

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

TEST(MasterAddress, WaitsForAListener) {
  const auto listener = sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0));
  const auto port = sys::SocketAddress::local(listener.get()).port();
  const auto master = master_at("localhost", port);
  EXPECT_NO_THROW(master.check_own());
  EXPECT_NO_THROW(master.wait_for_listener(1, "rank 0", Deadline::after(10s)));
}

TEST(MasterAddress, SaysWhoDidNotArrive) {
  const auto port = [] {
    const auto closed = sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0));
    return sys::SocketAddress::local(closed.get()).port();
  }();
  const auto master = master_at("127.0.0.1", port);
  expect_words(message_of<Timeout>([&] {
                 master.wait_for_listener(1, "rank 0, which listens there,",
                                          Deadline::after(300ms));
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
        message_of<BadInput>([&] { master.wait_for_listener(1, "rank 0", Deadline::after(60s)); }),
        {"rank 1: MASTER_ADDR cannot be reached", "is the loopback interface up?"});
    EXPECT_LT(Clock::now() - begin, 10s);
  });
}

}  // namespace
