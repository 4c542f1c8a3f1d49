#include "sys/socket_address.h"

#include <gtest/gtest.h>

#include "sys/topology.h"

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

TEST(OwnAddress, LoopbackIsItsOwn) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_towards("localhost"), "127.0.0.1");
}

TEST(OwnAddress, ThisMachinesNameIsNotALoopbackWhereThereIsAnother) {
  std::string own;
  try {
    own = address_towards(host_name());
  } catch (const Error& error) {
    GTEST_SKIP() << "this machine does not know its own name: " << error.what();
  }
  // The result is the same whether the name resolves to 127.0.1.1, as on Debian, or to the address.
  EXPECT_EQ(own, address_towards(own));
}

TEST(OwnAddress, AHostThatDoesNotExistIsBadInput) {
  EXPECT_THROW((void)address_towards("no such host"), BadInput);
}

TEST(LoopbackName, IsWhatMeansAnotherMachineOnEach) {
  for (const char* host : {"localhost", "127.0.0.1", "127.3.2.1", "::1"})
    EXPECT_TRUE(is_loopback_name(host)) << host;
  for (const char* host :
       {"", "node1", "10.0.0.1", "0.0.0.0", "::", "fe80::1", "127", "12.x", "ada"})
    EXPECT_FALSE(is_loopback_name(host)) << host;
}

TEST(SocketAddress, HostIsTheAddressAlone) {
  EXPECT_EQ(SocketAddress::tcp("127.0.0.1", 80).host(), "127.0.0.1");
  EXPECT_EQ(SocketAddress::tcp("::1", 80).host(), "::1");
  EXPECT_EQ(SocketAddress::of("@name", 0).host(), "@name");
  EXPECT_EQ(SocketAddress::of("127.0.0.1", 80).text(), "127.0.0.1:80");
}

}  // namespace
}  // namespace lockstep::sys
