#include "sys/socket_address.h"

#include "support/own_hosts.h"
#include "support/processes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

using namespace std::chrono_literals;

TEST(SocketAddress, TcpAddressesReadAsTheyAreWritten) {
  SocketAddress address = SocketAddress::tcp("127.0.0.1", 1234);
  EXPECT_EQ(address.text(), "127.0.0.1:1234");
  EXPECT_EQ(address.port(), 1234);
  EXPECT_TRUE(address.is_loopback());
  EXPECT_EQ(SocketAddress::tcp("::1", 80).text(), "[::1]:80");
  EXPECT_TRUE(SocketAddress::tcp("::1", 80).is_loopback());
  EXPECT_FALSE(SocketAddress::tcp("0.0.0.0", 80).is_loopback());
  EXPECT_FALSE(SocketAddress::tcp("192.0.2.1", 80).is_loopback());
  EXPECT_TRUE(SocketAddress::tcp("localhost", 80).is_loopback());
}

TEST(SocketAddress, AddressesMayStandInBrackets) {
  EXPECT_EQ(SocketAddress::tcp("[::1]", 80).text(), "[::1]:80");
  EXPECT_EQ(SocketAddress::tcp("[127.0.0.1]", 80).text(), "127.0.0.1:80");
  EXPECT_THROW((void)SocketAddress::tcp("[::1", 80), BadInput);
  EXPECT_THROW((void)SocketAddress::tcp("[]", 80), BadInput);
}

// Every network has such addresses, so the interface is part of the address.
TEST(SocketAddress, LinkLocalAddressesKeepTheirInterface) {
  const auto address = SocketAddress::tcp("fe80::1%lo", 80);
  EXPECT_EQ(address.host(), "fe80::1%lo");
  EXPECT_EQ(address.text(), "[fe80::1%lo]:80");
  EXPECT_THROW((void)SocketAddress::tcp("fe80::1", 80), BadInput);
}

TEST(SocketAddress, AHostThatDoesNotExistIsNamed) {
  try {
    (void)SocketAddress::tcp("no such host", 1);
    FAIL() << "no exception";
  } catch (const BadInput& error) {
    EXPECT_NE(std::string(error.what()).find("'no such host'"), std::string::npos) << error.what();
  }
}

TEST(SocketAddress, AHostMayBecomeKnownUntilTheDeadline) {
  test::expect_ranks(1, [](int) {
    test::OwnHosts hosts;
    if (!hosts.begin()) {
      std::puts("not checked: this system allows no hosts file of one's own");
      return;
    }
    const std::jthread later([&] {
      std::this_thread::sleep_for(500ms);
      hosts.write("127.0.0.7 late-host.invalid\n");
    });
    EXPECT_EQ(SocketAddress::tcp("late-host.invalid", 80, Deadline::after(30s)).text(),
              "127.0.0.7:80");
  });
}

TEST(SocketAddress, UnixNames) {
  EXPECT_EQ(SocketAddress::path("/tmp/x.sock").text(), "/tmp/x.sock");
  EXPECT_EQ(SocketAddress::abstract("lockstep/1").text(), "@lockstep/1");
  EXPECT_EQ(SocketAddress::abstract("x").port(), 0);
  EXPECT_TRUE(SocketAddress::abstract("x").is_loopback());
  EXPECT_NO_THROW((void)SocketAddress::path(std::string(107, 'x')));
  EXPECT_THROW((void)SocketAddress::path(std::string(108, 'x')), BadInput);
  EXPECT_THROW((void)SocketAddress::abstract(""), BadInput);
}

}  // namespace
}  // namespace lockstep::sys
