#include "store/handshake.h"

#include "store/conversation.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::store {
namespace {

void send_in_pieces(ServerSession& session, std::string_view bytes, std::size_t piece) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    session.receive(bytes.substr(0, piece));
  }
}

TEST(ServerSession, AConversationInPiecesOfAnySize) {
  for (std::size_t piece : {1, 2, 7, 71, 72, 73, 96, 1000}) {
    ServerSession session{StoreKey("secret")};
    TestClient client("secret");
    send_in_pieces(session, client.prove(take_output(session)), piece);
    EXPECT_TRUE(session.proven());
    std::string rest = client.begin(take_output(session));
    rest += client.seal({1, Code::add, 5, {"key"}});
    rest += client.seal({2, Code::keys, 0, {""}});
    send_in_pieces(session, rest, piece);
    auto first = session.next(), second = session.next();
    ASSERT_TRUE(first && second) << piece;
    EXPECT_EQ(first->number, 5);
    EXPECT_EQ(second->code, Code::keys);
    EXPECT_FALSE(session.next());

    session.send({2, Code::done, 0, {"key"}});
    EXPECT_EQ(client.open(take_output(session).substr(4)).parts.at(0), "key");
  }
}

TEST(ServerSession, EverythingThatIsNoProofGetsTheSameAnswer) {
  TestClient wrong("Secret");
  ServerSession with_wrong_secret{StoreKey("secret")};
  std::string wrong_proof = wrong.prove(take_output(with_wrong_secret));
  EXPECT_THROW(with_wrong_secret.receive(wrong_proof), BadInput);
  std::string refusal = take_output(with_wrong_secret);
  EXPECT_EQ(refusal, std::string(proof_bytes + stream_header_bytes, '\0'));
  EXPECT_FALSE(with_wrong_secret.proven());

  ServerSession with_garbage{StoreKey("secret")};
  (void)take_output(with_garbage);
  EXPECT_THROW(with_garbage.receive(std::string(10'000, 'x')), BadInput);
  EXPECT_EQ(take_output(with_garbage), refusal);

  // A correct proof after a wrong magic.
  ServerSession with_wrong_magic{StoreKey("secret")};
  TestClient right("secret");
  std::string proof = right.prove(take_output(with_wrong_magic));
  proof[0] = 'X';
  EXPECT_THROW(with_wrong_magic.receive(proof), BadInput);
  EXPECT_EQ(take_output(with_wrong_magic), refusal);
}

TEST(ServerSession, AnOldConversationIsWorthNothing) {
  TestClient client("secret");
  ServerSession first{StoreKey("secret")}, second{StoreKey("secret")};
  std::string proof = client.prove(take_output(first));
  first.receive(proof);
  EXPECT_TRUE(first.proven());
  EXPECT_THROW(second.receive(proof), BadInput);
}

TEST(ServerSession, AChangedFrameEndsTheConversation) {
  ServerSession session{StoreKey("secret")};
  TestClient client("secret");
  session.receive(client.prove(take_output(session)));
  session.receive(client.begin(take_output(session)));
  std::string frame = client.seal({1, Code::set, 0, {"key", "value"}});
  frame.back() = static_cast<char>(frame.back() ^ 1);
  session.receive(frame);
  EXPECT_THROW((void)session.next(), BadInput);
}

TEST(ServerSession, NothingIsSentToThoseWithoutProof) {
  ServerSession session{StoreKey("secret")};
  EXPECT_THROW(session.send({}), InvalidArgument);
  EXPECT_FALSE(session.next());
}

}  // namespace
}  // namespace lockstep::store
