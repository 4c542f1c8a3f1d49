#include "sys/sockets.h"
#include "support/messages.h"
#include "support/sockets.h"

#include "support/free_port.h"
#include "support/soon.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::sys {
namespace {

using namespace std::chrono_literals;
using test::soon;

// A listener, and both ends of one connection to it.
struct Connection {
  explicit Connection(const SocketAddress& address) : listener(listen_on(address)) {
    client = connect_to(SocketAddress::local(listener.get()), soon());
    server = test::accept_one(listener.get(), soon());
  }
  FileDescriptor listener, client, server;
};

std::string receive_text(int socket, std::size_t size) {
  std::string text(size, '\0');
  receive_exact(socket, std::as_writable_bytes(std::span(text)), soon());
  return text;
}

TEST(Sockets, BytesGoBothWaysOverEachKind) {
  test::TemporaryFolder folder;
  std::string name = "lockstep-test-" + std::to_string(::getpid());
  for (const SocketAddress& address :
       {SocketAddress::tcp("127.0.0.1", 0), SocketAddress::path((folder / "s").string()),
        SocketAddress::abstract(name)}) {
    Connection connection(address);
    send_all(connection.client.get(), bytes_of("hello"), soon());
    EXPECT_EQ(receive_text(connection.server.get(), 5), "hello") << address.text();
    send_all(connection.server.get(), bytes_of("world"), soon());
    EXPECT_EQ(receive_text(connection.client.get(), 5), "world") << address.text();
    send_all(connection.client.get(), {}, soon());
    receive_exact(connection.client.get(), {}, soon());
  }
}

TEST(Sockets, MoreThanTheBuffersHoldArrivesWhole) {
  auto [left, right] = test::socket_pair();
  std::string sent(8'000'001, '\0');
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 7);
  std::thread sender([&, socket = left.get()] { send_all(socket, bytes_of(sent), soon()); });
  EXPECT_EQ(receive_text(right.get(), sent.size()), sent);
  sender.join();
}

TEST(Sockets, ReceivingAndSendingEndAtTheDeadline) {
  auto [left, right] = test::socket_pair();
  std::vector<std::byte> much(8'000'000);
  EXPECT_THROW(receive_exact(left.get(), std::span(much).first(1), Deadline::after(20ms)), Timeout);
  EXPECT_THROW(send_all(left.get(), much, Deadline::after(20ms)), Timeout);
}

TEST(Sockets, AClosedPeerIsLost) {
  auto [left, right] = test::socket_pair();
  right.reset();
  std::byte byte{};
  EXPECT_THROW(receive_exact(left.get(), std::span(&byte, 1), soon()), PeerLost);
  EXPECT_THROW(send_all(left.get(), std::span(&byte, 1), soon()), PeerLost);
}

TEST(Sockets, WithoutWaitingThereMayBeNothing) {
  auto [left, right] = test::socket_pair();
  std::vector<std::byte> buffer(16);
  EXPECT_FALSE(receive_now(left.get(), buffer));
  EXPECT_EQ(send_now(right.get(), bytes_of("abc")), 3u);
  EXPECT_EQ(receive_now(left.get(), buffer), 3u);
  EXPECT_FALSE(wait_ready(left.get(), POLLIN, Deadline::after(1ms)));
}

TEST(Sockets, APortInUseIsSaidSo) {
  FileDescriptor listener = listen_on(SocketAddress::tcp("127.0.0.1", 0));
  SocketAddress taken = SocketAddress::local(listener.get());
  EXPECT_EQ(test::message_of<Error>([&] { (void)listen_on(taken); }),
            "listening on " + taken.text() + ": the port is in use by another process");
  EXPECT_THROW((void)listen_on(taken), BadInput);
}

TEST(Sockets, ConnectWaitsForALateListener) {
  SocketAddress address = SocketAddress::tcp("127.0.0.1", test::free_port());
  EXPECT_FALSE(try_connect(address, soon()));
  FileDescriptor listener;
  std::thread server([&] {
    std::this_thread::sleep_for(50ms);
    listener = listen_on(address);
  });
  EXPECT_TRUE(connect_to(address, soon()));
  server.join();
}

TEST(Sockets, ConnectSaysThatNobodyAnswered) {
  SocketAddress address = SocketAddress::tcp("127.0.0.1", test::free_port());
  EXPECT_EQ(test::message_of<Error>([&] { (void)connect_to(address, Deadline::after(30ms)); }),
            "connecting to " + address.text() + ": timed out (Connection refused)");
}

// A port in the ephemeral range can connect to itself; this happens often in a few thousand tries
// of an even port, which connect() prefers.
TEST(Sockets, ConnectingToAFreePortNeverMeetsItself) {
  for (const std::string& own : {std::string("127.0.0.1"), own_addresses().front()}) {
    const auto port = static_cast<std::uint16_t>(test::free_port() & ~1);
    const SocketAddress address = SocketAddress::tcp(own, port);
    for (int i = 0; i < 3000; ++i) ASSERT_FALSE(try_connect(address, soon())) << own;
  }
}

// The kernel refuses longer times, and would then notice a lost host after two hours or never.
TEST(Sockets, KeepaliveOfManyDaysIsTheLongestPossible) {
  const Connection connection(SocketAddress::tcp("127.0.0.1", 0));
  keep_alive(connection.client.get(), Duration::max());
  int idle = 0, unanswered = 0;
  socklen_t size = sizeof idle;
  EXPECT_EQ(::getsockopt(connection.client.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size), 0);
  size = sizeof unanswered;
  EXPECT_EQ(
      ::getsockopt(connection.client.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, &size), 0);
  EXPECT_GT(idle, 7200);
  EXPECT_EQ(unanswered, 9 * 3600 * 1000);
}

}  // namespace
}  // namespace lockstep::sys
