// A client against servers that send malformed answers, before and after the handshake.
#include "store/conversation.h"
#include "store/handshake.h"
#include "store/raw_peer.h"
#include "support/fuzz.h"
#include "support/sockets.h"
#include "support/soon.h"
#include "sys/sockets.h"

#include <lockstep/store/tcp_store.h>

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;
using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;
using test::soon;

struct Words {
  std::string bytes;
  bool hang_up = false;  // close the connection afterwards
};

// Answers the client until one side ends the connection.
void talk(int socket, const std::function<Words(std::string_view)>& answer_to) {
  try {
    std::string piece(64 << 10, '\0');
    for (std::size_t heard = 0;;) {
      Words words = answer_to(std::string_view(piece).substr(0, heard));
      sys::send_all(socket, sys::bytes_of(words.bytes), soon());
      if (words.hang_up) return;
      if (!sys::wait_ready(socket, POLLIN, soon())) return;
      heard = sys::receive_now(socket, std::as_writable_bytes(std::span(piece))).value_or(0);
    }
  } catch (const Error&) {
    return;
  }
}

// Makes a server's handshake with a random secret, and sometimes changes its bytes.
Words shake_hands_badly(ServerSession& session, std::string_view said, Random& random) {
  try {
    session.receive(said);
  } catch (const BadInput&) {  // the client's proof is for another secret
    if (one_in(random, 2)) return {test::random_bytes(random, answer_bytes), true};
  }
  std::string honest = take_output(session);
  if (!one_in(random, 3)) return {honest};
  return {mutated(honest, random), true};
}

TEST(FuzzClient, BelievesNoServerThatDoesNotKnowTheSecret) {
  std::uint64_t accepted = 0, refused = 0;
  FuzzRounds rounds("impostors");
  while (rounds.next()) {
    bool knows = one_in(rounds.random(), 2);
    auto [client, server] = test::socket_pair();
    std::thread impostor([&rounds, knows, socket = std::move(server)] {
      ServerSession session{StoreKey(knows ? "secret" : "Secret")};
      talk(socket.get(), [&](std::string_view said) {
        return shake_hands_badly(session, said, rounds.random());
      });
    });
    try {
      (void)shake_hands(client.get(), "the store", StoreKey("secret"), soon());
      EXPECT_TRUE(knows);
      ++accepted;
    } catch (const BadInput&) {
      ++refused;
    } catch (const PeerLost&) {
      ++refused;
    }
    client.reset();
    impostor.join();
  }
  if (!rounds.enough()) return;
  EXPECT_GT(accepted, rounds.count() / 20);
  EXPECT_GT(refused, rounds.count() / 4);
}

// Makes requests of every kind; each must soon return or throw.
void use(TcpStore& store) {
  const std::vector<std::string> both{"a", "b"};
  const std::vector<std::function<void()>> calls{
      [&] { store.set("key", "value"); },      [&] { (void)store.try_get("key"); },
      [&] { (void)store.get("key", soon()); }, [&] { store.wait(both, soon()); },
      [&] { store.add("count", 1); },          [&] { (void)store.compare_set("key", "", "value"); },
      [&] { (void)store.erase("key"); },       [&] { (void)store.keys(""); },
  };
  for (const auto& call : calls) {
    try {
      call();
    } catch (const Timeout&) {  // a reply may report a timeout
    } catch (const BadInput&) {
    }
  }
}

// Returns a random reply, which may be invalid.
Message some_reply(std::uint64_t id, Random& random) {
  constexpr Code codes[] = {Code::done, Code::done,    Code::done,
                            Code::late, Code::refused, Code::set};
  return {id, codes[below(random, std::size(codes))], static_cast<std::int64_t>(random()),
          std::vector<std::string>(below(random, 3), "value")};
}

// A server that knows the secret and sends random replies, some with unknown ids or changed bytes.
void serve_nonsense(int socket, std::uint64_t seed) {
  Random random(seed);
  ServerSession session{StoreKey("secret")};
  talk(socket, [&](std::string_view said) -> Words {
    session.receive(said);
    while (auto request = session.next()) {
      if (one_in(random, 4)) session.send(some_reply(random(), random));
      session.send(some_reply(request->id, random));
      if (one_in(random, 6)) return {mutated(take_output(session), random), true};
    }
    return {take_output(session)};
  });
}

TEST(FuzzClient, EndsEveryCallWhateverTheServerReplies) {
  auto listener = sys::listen_on(sys::SocketAddress::tcp("127.0.0.1", 0));
  auto port = sys::SocketAddress::local(listener.get()).port();
  std::uint64_t lost = 0;
  FuzzRounds rounds("replies");
  while (rounds.next()) {
    auto seed = rounds.random()();
    std::thread server([&] {
      auto socket = test::accept_one(listener.get(), soon());
      serve_nonsense(socket.get(), seed);
    });
    auto start = Clock::now();
    try {
      TcpStore store({.port = port, .secret = "secret", .connect_timeout = 20s});
      use(store);
    } catch (const PeerLost&) {
      ++lost;
    }
    EXPECT_LT(Clock::now() - start, 15s);
    server.join();
  }
  if (rounds.enough()) EXPECT_GT(lost, 0u);
}

}  // namespace
}  // namespace lockstep::store
