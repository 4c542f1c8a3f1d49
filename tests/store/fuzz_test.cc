// Hostile peers against the decoder, a session and a live server, which must serve an honest client
// throughout.
//
// Insiders know the secret: their messages are changed before they are sealed. Outsiders do not
// know it: their bytes are changed, replayed or made up.
#include "support/fuzz.h"
#include "store/handshake.h"
#include "store/hostile_talk.h"
#include "store/raw_peer.h"
#include "store/requests.h"

#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
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

constexpr auto patience = 20s;  // timeout of the honest client on a busy host

std::vector<std::string> encoded_requests() {
  std::vector<std::string> messages;
  for (const Message& request : some_requests()) messages.push_back(encode(request));
  return messages;
}

// Includes replies, because a client may send them.
std::vector<std::string> odd_messages() {
  return {encode({1, Code::done, 5, {"value"}}), encode({2, Code::late, 0, {"a", "b"}}),
          encode({3, Code::refused, 0, {"no"}}), std::string(), std::string(21, '\xff')};
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  return all;
}

TEST(Fuzz, DecodedMessagesAreExecutedOrRefused) {
  Table table;
  std::uint64_t decoded = 0, refused = 0;
  FuzzRounds rounds("messages");
  while (rounds.next()) {
    for (const std::string& bytes : mutated(encoded_requests(), rounds.random(), odd_messages())) {
      try {
        Message message = decode(mutated(bytes, rounds.random()));
        EXPECT_EQ(decode(encode(message)), message);
        Outcome outcome = execute(table, message);
        if (outcome.reply) (void)encode(*outcome.reply);
        ++decoded;
      } catch (const BadInput&) {
        ++refused;
      }
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(decoded, rounds.count() / 10);
  EXPECT_GT(refused, rounds.count() / 10);
}

// An attacker changes the bytes of a client that knows the secret: the server must only receive
// messages that the client sent, in their order.
TEST(Fuzz, ASessionBelievesNothingThatWasChanged) {
  std::uint64_t ended = 0, heard = 0;
  FuzzRounds rounds("changed conversations");
  while (rounds.next()) {
    ServerSession session{StoreKey("secret")};
    TestClient client("secret"), other("secret");
    std::string proof = client.prove(session.output());
    try {
      bool change_proof = one_in(rounds.random(), 8);
      session.mark_sent(session.output().size());
      session.receive(change_proof ? mutated(proof, rounds.random()) : proof);
      if (!session.proven()) continue;
      std::vector<std::string> pieces{client.begin(session.output())};
      std::vector<std::string> others{other.begin(session.output())};
      for (const Message& request : some_requests()) {
        pieces.push_back(client.seal(request));
        others.push_back(other.seal(request));
      }
      session.receive(joined(mutated(pieces, rounds.random(), others)));
      std::vector<Message> sent = some_requests();
      for (std::size_t number = 0; auto request = session.next(); ++number, ++heard) {
        ASSERT_LT(number, sent.size());
        EXPECT_EQ(*request, sent[number]);
      }
    } catch (const BadInput&) {
      ++ended;
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(ended, rounds.count() / 4);
  EXPECT_GT(heard, rounds.count() / 4);
}

// Expects that every frame of `bytes` is a reply that the client can open, in order; the last frame
// may be truncated.
void expect_replies(TestClient& client, const std::string& bytes) {
  FrameReader frames(seal_bytes);
  frames.append(bytes);
  for (std::string sealed; frames.next(sealed);) {
    Message reply = client.open(sealed);
    EXPECT_GE(static_cast<int>(reply.code), static_cast<int>(Code::done));
  }
}

class FuzzLiveServer : public testing::Test {
 protected:
  [[nodiscard]] std::uint16_t port() const { return server_.port(); }

  // Makes one call of the honest client, between any two hostile connections.
  void expect_service() {
    auto start = Clock::now();
    EXPECT_EQ(witness_.add("witness of the server", 1), ++count_);
    slowest_ = std::max<Duration>(slowest_, Clock::now() - start);
    if (count_ == 100) resident_ = resident_bytes();
  }

  void TearDown() override {
    TcpStore late({.port = port(), .secret = "secret", .connect_timeout = patience});
    EXPECT_EQ(late.add("witness of the server", 0), count_);
    EXPECT_LT(slowest_, 5s);
    if (count_ > 100 && !is_sanitized) EXPECT_LT(resident_bytes(), resident_ + (64 << 20));
  }

  StoreServer server_{{.secret = "secret", .handshake_timeout = 5s, .max_unproven = 32}};
  TcpStore witness_{{.port = server_.port(), .secret = "secret", .connect_timeout = patience}};
  std::int64_t count_ = 0;
  Duration slowest_{};
  std::size_t resident_ = 0;
};

TEST_F(FuzzLiveServer, OutlivesInsidersThatSpeakNonsense) {
  // connections that end in the middle of a message
  std::deque<std::unique_ptr<RawPeer>> left_open;
  FuzzRounds rounds("insiders");
  while (rounds.next()) {
    Random& random = rounds.random();
    auto peer = std::make_unique<RawPeer>(port());
    TestClient client("secret");
    peer->begin(client);
    std::vector<std::string> frames;
    for (const std::string& message : mutated(encoded_requests(), random, odd_messages())) {
      frames.push_back(client.seal_bytes(message));
    }
    bool change_frames = one_in(random, 4);
    send_in_pieces(*peer, joined(change_frames ? mutated(frames, random) : frames), random);
    if (one_in(random, 4)) {
      left_open.push_back(std::move(peer));
      if (left_open.size() > 20) left_open.pop_front();
    } else {
      expect_replies(client, peer->finish());
    }
    expect_service();
  }
  EXPECT_GT(rounds.count(), 0u);
}

TEST_F(FuzzLiveServer, TellsOutsidersNothing) {
  Outsiders outsiders(port(), "secret");
  FuzzRounds rounds("outsiders");
  while (rounds.next()) {
    outsiders.talk(rounds.random());
    expect_service();
  }
  if (rounds.enough()) EXPECT_GT(outsiders.refused(), rounds.count() / 10);
}

}  // namespace
}  // namespace lockstep::store
