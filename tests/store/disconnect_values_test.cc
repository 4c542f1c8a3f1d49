// Values that the server writes when a client's connection ends: tested separately and over a
// connection.
#include "store/requests.h"

#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include "base/scope_exit.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/soon.h"
#include "sys/sockets.h"

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>

#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using store::Code;
using store::DisconnectValues;
using test::expect_words;
using test::message_of;
using test::soon;

TcpStore client_of(const StoreServer& server) {
  return TcpStore({.port = server.port(), .secret = "swordfish", .connect_timeout = 20s});
}

store::Message request(std::vector<std::string> parts) {
  return {.id = 7, .code = Code::on_disconnect, .number = 0, .parts = std::move(parts)};
}

TEST(DisconnectValues, AreKeptByKey) {
  DisconnectValues values;
  EXPECT_EQ(values.add(request({"a", "1"})), (store::Message{7, Code::done, 0, {}}));
  EXPECT_EQ(values.add(request({"b", ""})).code, Code::done);
  EXPECT_EQ(values.add(request({"a", "2"})).code, Code::done);
  EXPECT_EQ(values.values(), (std::map<std::string, std::string>{{"a", "2"}, {"b", ""}}));
}

TEST(DisconnectValues, NonsenseAndTooMuchAreRefused) {
  DisconnectValues values;
  const std::string long_key(Store::max_key_bytes + 1, 'k'), long_value((64 << 10) + 1, 'v');
  for (const auto& parts : std::vector<std::vector<std::string>>{
           {}, {"a"}, {"a", "b", "c"}, {"", "b"}, {long_key, "b"}, {"a", long_value}})
    EXPECT_EQ(values.add(request(parts)).code, Code::refused);
  EXPECT_TRUE(values.values().empty());
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(values.add(request({std::to_string(i), "word"})).code, Code::done);
  EXPECT_EQ(values.add(request({"one more", "word"})).code, Code::refused);
  EXPECT_EQ(values.add(request({"3", "another"})).code, Code::done);
  EXPECT_EQ(values.values().size(), 16u);
}

TEST(DisconnectValues, AreSaidWhenTheClientLeaves) {
  StoreServer server({.secret = "swordfish"});
  auto reader = client_of(server);
  reader.set("taken", "before");
  {
    auto leaver = client_of(server);
    leaver.set_on_disconnect("gone", "left");
    leaver.set_on_disconnect("taken", "left");
    leaver.set_on_disconnect("gone", "left in order");
    EXPECT_EQ(reader.try_get("gone"), std::nullopt);
  }
  EXPECT_EQ(reader.get("gone", soon()), "left in order");
  EXPECT_EQ(reader.get("taken", soon()), "before");
  expect_words(
      message_of<BadInput>([&] { reader.set_on_disconnect("a", std::string(1 << 20, 'x')); }),
      {"end of a connection", "64 KiB"});
}

// The client's own child, like a data-loading worker, is still there.
TEST(DisconnectValues, AreSaidWhenTheClientIsKilled) {
  StoreServer server({.secret = "swordfish"});
  auto reader = client_of(server);
  test::RankProcesses client(1, [&](int) {
    auto store = client_of(server);
    store.set_on_disconnect("gone", "killed");
    const pid_t child = ::fork();
    if (child == 0) {
      ::sleep(20);
      ::_exit(0);
    }
    store.set("child", std::to_string(child));
    ::pause();
  });
  const pid_t child = std::stoi(reader.get("child", soon()));
  const ScopeExit end_child([&] { ::kill(child, SIGKILL); });
  const auto begin = Clock::now();
  client.kill(0, SIGKILL);
  EXPECT_EQ(reader.get("gone", soon()), "killed");
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST(AbstractSocket, IsAStoreOfThisUser) {
  const std::string name = "@lockstep test " + std::to_string(::getpid());
  StoreServer server({.host = name});
  EXPECT_EQ(server.address(), name);
  TcpStore store({.host = name, .connect_timeout = 20s});
  store.set("key", "value");
  EXPECT_EQ(store.get("key", soon()), "value");
  EXPECT_EQ(store.own_address(), "an unnamed socket");
  expect_words(message_of<BadInput>([&] { StoreServer second({.host = name}); }),
               {name, "in use by another process"});
}

TEST(AbstractSocket, AnotherUserNeitherEntersNorServes) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string ours = "@lockstep ours " + std::to_string(::getpid());
  const std::string theirs = "@lockstep theirs " + std::to_string(::getpid());
  StoreServer server({.host = ours});
  test::RankProcesses other(1, [&](int) {
    ASSERT_EQ(::setuid(65534), 0);
    StoreServer trap({.host = theirs});
    expect_words(
        message_of<BadInput>([&] { TcpStore store({.host = ours, .connect_timeout = 5s}); }),
        {ours, "belongs to user 0"});
    auto socket = sys::connect_to(sys::SocketAddress::of(ours, 0), soon());
    std::byte greeting{};
    EXPECT_THROW(sys::receive_exact(socket.get(), {&greeting, 1}, soon()), PeerLost);
    ::pause();
  });
  expect_words(
      message_of<BadInput>([&] { TcpStore store({.host = theirs, .connect_timeout = 20s}); }),
      {theirs, "belongs to user 65534"});
  other.kill(0, SIGTERM);
  EXPECT_EQ(other.wait(0, 20s).signal, SIGTERM);
}

}  // namespace
}  // namespace lockstep
