#include "store/handshake.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::store {
namespace {

Nonces some_nonces() {
  Nonces nonces;
  nonces.server.fill(1);
  nonces.client.fill(2);
  return nonces;
}

TEST(Handshake, BothSidesMakeTheSame) {
  Nonces nonces = some_nonces();
  StoreKey server("secret"), client("secret");
  EXPECT_EQ(server.client_proof(nonces), client.client_proof(nonces));
  EXPECT_EQ(server.server_proof(nonces), client.server_proof(nonces));
  EXPECT_EQ(server.key_to_server(nonces), client.key_to_server(nonces));
  EXPECT_EQ(server.key_to_client(nonces), client.key_to_client(nonces));
}

TEST(Handshake, NothingIsUsedTwice) {
  Nonces nonces = some_nonces(), swapped = some_nonces(), other = some_nonces();
  std::swap(swapped.server, swapped.client);
  other.client[31] ^= 1;
  std::set<Proof> seen;
  int made = 0;
  for (const char* secret : {"secret", "Secret", ""}) {
    StoreKey key(secret);
    for (const Nonces& used : {nonces, swapped, other}) {
      for (const Proof& value : {key.server_proof(used), key.client_proof(used),
                                 key.key_to_server(used), key.key_to_client(used)}) {
        seen.insert(value);
        ++made;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(made));
}

TEST(Handshake, NoncesAreRandom) { EXPECT_NE(random_nonce(), random_nonce()); }

TEST(Handshake, EqualLooksAtEveryByte) {
  Proof a{}, b{};
  EXPECT_TRUE(equal(a, b));
  for (std::size_t i = 0; i < b.size(); ++i) {
    b = a;
    b[i] ^= 0x80;
    EXPECT_FALSE(equal(a, b)) << i;
  }
}

}  // namespace
}  // namespace lockstep::store
