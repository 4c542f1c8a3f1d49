#include "store/handshake.h"

#include <gtest/gtest.h>

#include <set>

#include <lockstep/base/error.h>

namespace lockstep::store {
namespace {

Nonces some_nonces() { return {std::string(nonce_bytes, '\1'), std::string(nonce_bytes, '\2')}; }

TEST(Handshake, BothSidesMakeTheSame) {
  Nonces nonces = some_nonces();
  StoreKey server("secret"), client("secret");
  for (std::string_view label : {client_proof, server_proof, key_to_server, key_to_client})
    EXPECT_EQ(server.derive(label, nonces), client.derive(label, nonces));
}

TEST(Handshake, NothingIsUsedTwice) {
  Nonces nonces = some_nonces(), swapped = some_nonces(), other = some_nonces();
  std::swap(swapped.server, swapped.client);
  other.client[31] ^= 1;
  std::set<std::string> seen;
  int made = 0;
  for (const char* secret : {"secret", "Secret", ""}) {
    StoreKey key(secret);
    for (const Nonces& used : {nonces, swapped, other}) {
      for (std::string_view label : {client_proof, server_proof, key_to_server, key_to_client}) {
        seen.insert(key.derive(label, used));
        ++made;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(made));
}

TEST(Handshake, NoncesAreRandom) {
  const StoreKey key("secret");
  EXPECT_NE(ServerSession(key).output(), ServerSession(key).output());
}

TEST(Handshake, EqualLooksAtEveryByte) {
  std::string a(proof_bytes, '\0'), b = a;
  EXPECT_TRUE(equal(a, b));
  for (std::size_t i = 0; i < b.size(); ++i) {
    b = a;
    b[i] = '\x80';
    EXPECT_FALSE(equal(a, b)) << i;
  }
}

std::string some_key() { return std::string(proof_bytes, '\7'); }

std::string content(const std::string& frame) { return frame.substr(4); }

TEST(SealedStream, MessagesComeBackInOrder) {
  Sealer sealer(some_key());
  Opener opener(some_key(), sealer.header());
  for (std::size_t size : {0, 1, 17, 1000, 100'001}) {
    std::string message(size, 'm');
    std::string frame = sealer.seal(message);
    EXPECT_EQ(frame.size(), 4 + size + seal_bytes);
    EXPECT_EQ(opener.open(content(frame)), message);
  }
}

TEST(SealedStream, TheMessageCannotBeSeen) {
  Sealer sealer(some_key());
  EXPECT_EQ(sealer.seal("a secret message").find("secret"), std::string::npos);
  EXPECT_NE(sealer.seal("same"), sealer.seal("same"));
}

TEST(SealedStream, EveryChangeIsNoticed) {
  Sealer sealer(some_key());
  std::string sealed = content(sealer.seal("message"));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    Opener opener(some_key(), sealer.header());
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_THROW((void)opener.open(changed), BadInput) << i;
  }
  for (std::size_t size = 0; size < sealed.size(); ++size) {
    Opener opener(some_key(), sealer.header());
    EXPECT_THROW((void)opener.open(sealed.substr(0, size)), BadInput) << size;
  }
}

TEST(SealedStream, MessagesCannotBeRepeatedSkippedOrSwapped) {
  Sealer sealer(some_key());
  std::string first = content(sealer.seal("first")), second = content(sealer.seal("second"));
  Opener skipping(some_key(), sealer.header());
  EXPECT_THROW((void)skipping.open(second), BadInput);
  Opener repeating(some_key(), sealer.header());
  EXPECT_EQ(repeating.open(first), "first");
  EXPECT_THROW((void)repeating.open(first), BadInput);
}

TEST(SealedStream, AnotherKeyOrHeaderOpensNothing) {
  Sealer sealer(some_key()), other(some_key());
  std::string sealed = content(sealer.seal("message"));
  std::string wrong = some_key();
  wrong[0] ^= 1;
  EXPECT_THROW((void)Opener(wrong, sealer.header()).open(sealed), BadInput);
  EXPECT_THROW((void)Opener(some_key(), other.header()).open(sealed), BadInput);
  EXPECT_THROW(Opener(some_key(), "short"), BadInput);
}

}  // namespace

}  // namespace lockstep::store
