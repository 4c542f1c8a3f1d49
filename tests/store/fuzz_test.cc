// Mutated conversations: against the decoder, against a session, and against a live server, which
// must go on serving others.
#include "store/conversation.h"
#include "store/requests.h"
#include "store/server_session.h"
#include "sys/sockets.h"

#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include <poll.h>

#include <lockstep/base/error.h>

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;

constexpr auto time_for_each = 700ms;
constexpr std::size_t greeting_bytes = 40;
constexpr std::size_t answer_bytes = 56;

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

// Flips, cuts, doubles or inserts, once to four times.
std::string mutated(std::string bytes, Random& random) {
  for (std::size_t i = 0, changes = 1 + below(random, 4); i < changes; ++i) {
    std::size_t place = below(random, bytes.size() + 1);
    switch (below(random, 5)) {
      case 0:
        if (place < bytes.size()) bytes[place] = static_cast<char>(below(random, 256));
        break;
      case 1:
        bytes.resize(place);
        break;
      case 2:
        bytes += bytes.substr(place);
        break;
      case 3:
        bytes.insert(place, 1 + below(random, 8), static_cast<char>(below(random, 256)));
        break;
      default:
        if (place + 4 <= bytes.size()) bytes.replace(place, 4, below(random, 2) ? 4 : 3, '\xff');
    }
  }
  return bytes;
}

std::vector<Message> some_requests() {
  return {{1, Code::set, 0, {"key", "value"}},
          {2, Code::get, 1000, {"key"}},
          {3, Code::wait, 1000, {"key", "other", "third"}},
          {4, Code::add, -7, {"count"}},
          {5, Code::compare_set, 0, {"key", "value", "new"}},
          {6, Code::keys, 0, {""}},
          {7, Code::erase, 0, {"key"}},
          {8, Code::try_get, 0, {"key"}}};
}

TEST(Fuzz, DecodedMessagesAreExecutedOrRefused) {
  Random random(1);
  Table table;
  int decoded = 0, refused = 0;
  for (auto start = Clock::now(); Clock::now() - start < time_for_each;) {
    for (const Message& request : some_requests()) {
      try {
        Message message = decode(mutated(encode(request), random));
        EXPECT_EQ(decode(encode(message)), message);
        Outcome outcome = execute(table, message);
        if (outcome.reply) (void)encode(*outcome.reply);
        ++decoded;
      } catch (const BadInput&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(decoded, 100);
  EXPECT_GT(refused, 100);
}

// A whole conversation of a client that knows the secret; the part after the proof is mutated, so
// that the bytes reach what lies behind the handshake.
TEST(Fuzz, ASessionBelievesNothingThatWasChanged) {
  Random random(2);
  int ended = 0;
  for (auto start = Clock::now(); Clock::now() - start < time_for_each;) {
    ServerSession session{StoreKey("secret")};
    TestClient client("secret");
    std::string proof = client.prove(session.output());
    bool change_proof = below(random, 4) == 0;
    try {
      session.mark_sent(session.output().size());
      session.receive(change_proof ? mutated(proof, random) : proof);
      if (!session.proven()) continue;
      std::string rest = client.begin(session.output());
      for (const Message& request : some_requests()) rest += client.seal(request);
      session.receive(mutated(rest, random));
      std::size_t number = 0;
      std::vector<Message> sent = some_requests();
      while (auto request = session.next()) {
        ASSERT_LT(number, sent.size());
        EXPECT_EQ(*request, sent[number++]);  // what comes through came from the client, in order
      }
    } catch (const BadInput&) {
      ++ended;
    }
  }
  EXPECT_GT(ended, 20);
}

void converse(std::uint16_t port, Random& random) {
  Deadline soon = Deadline::after(10s);
  auto socket = sys::connect_to(sys::SocketAddress::tcp("127.0.0.1", port), soon);
  auto receive = [&](std::size_t size) {
    std::string text(size, '\0');
    sys::receive_exact(socket.get(), std::as_writable_bytes(std::span(text)), soon);
    return text;
  };
  auto send = [&](const std::string& bytes) {
    sys::send_all(socket.get(), sys::bytes_of(bytes), soon);
  };
  try {
    TestClient client("secret");
    std::string proof = client.prove(receive(greeting_bytes));
    if (below(random, 3) == 0) return send(mutated(proof, random));
    send(proof);
    std::string rest = client.begin(receive(answer_bytes));
    bool change_inside = below(random, 2) == 0;
    for (Message request : some_requests()) {
      if (change_inside) request.parts[0] = mutated(request.parts[0], random);
      rest += client.seal(request);
    }
    send(change_inside ? rest : mutated(rest, random));
    // A server that waits for the rest of a cut frame says nothing: look, but do not insist.
    if (below(random, 2) == 0) (void)sys::wait_ready(socket.get(), POLLIN, Deadline::after(2ms));
  } catch (const PeerLost&) {
    return;  // the server has had enough
  }
}

TEST(Fuzz, ALiveServerGoesOnServing) {
  Random random(3);
  StoreServer server({.secret = "secret", .handshake_timeout = 200ms});
  TcpStore witness({.port = server.port(), .secret = "secret", .connect_timeout = 10s});
  std::int64_t count = 0;
  for (auto start = Clock::now(); Clock::now() - start < time_for_each;) {
    converse(server.port(), random);
    EXPECT_EQ(witness.add("witness of the server", 1), ++count);
  }
  EXPECT_GT(count, 5);
  TcpStore late({.port = server.port(), .secret = "secret", .connect_timeout = 10s});
  EXPECT_EQ(late.add("witness of the server", 0), count);
}

}  // namespace
}  // namespace lockstep::store
