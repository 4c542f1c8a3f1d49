#include "store/handshake.h"

#include "base/check.h"
#include "store/wire.h"
#include "sys/sockets.h"

#include <lockstep/base/error.h>

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace lockstep::store {
namespace {

std::string receive_text(int socket, std::size_t size, Deadline deadline) {
  std::string text(size, '\0');
  sys::receive_exact(socket, std::as_writable_bytes(std::span(text)), deadline);
  return text;
}

}  // namespace

Nonce random_nonce() {
  if (sodium_init() < 0) throw SystemError("starting libsodium", 0);
  Nonce nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

StoreKey::StoreKey(std::string_view secret) {
  constexpr std::string_view label = "lockstep store: key of the secret";
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, key_.size());
  crypto_generichash_update(&state, unsigned_bytes_of(label), label.size());
  crypto_generichash_update(&state, unsigned_bytes_of(secret), secret.size());
  crypto_generichash_final(&state, key_.data(), key_.size());
}

StoreKey::~StoreKey() { sodium_memzero(key_.data(), key_.size()); }

std::array<unsigned char, 32> StoreKey::derive(std::string_view label, const Nonces& nonces) const {
  std::array<unsigned char, 32> result{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, key_.data(), key_.size(), result.size());
  crypto_generichash_update(&state, unsigned_bytes_of(label), label.size());
  crypto_generichash_update(&state, nonces.server.data(), nonces.server.size());
  crypto_generichash_update(&state, nonces.client.data(), nonces.client.size());
  crypto_generichash_final(&state, result.data(), result.size());
  return result;
}

Proof StoreKey::server_proof(const Nonces& nonces) const {
  return derive("lockstep store: proof of the server", nonces);
}

Proof StoreKey::client_proof(const Nonces& nonces) const {
  return derive("lockstep store: proof of the client", nonces);
}

StreamKey StoreKey::key_to_server(const Nonces& nonces) const {
  return derive("lockstep store: stream to the server", nonces);
}

StreamKey StoreKey::key_to_client(const Nonces& nonces) const {
  return derive("lockstep store: stream to the client", nonces);
}

bool equal(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

ClientStreams shake_hands(int socket, std::string_view address, const StoreKey& key,
                          Deadline deadline) {
  std::string greeting = receive_text(socket, magic.size() + nonce_bytes, deadline);
  check_input(greeting.starts_with(magic), "{} is not a Lockstep store", address);
  Nonces nonces{.server = {}, .client = random_nonce()};
  std::memcpy(nonces.server.data(), greeting.data() + magic.size(), nonce_bytes);

  std::string proof(magic);
  proof.append(text_of(nonces.client)).append(text_of(key.client_proof(nonces)));
  sys::send_all(socket, sys::bytes_of(proof), deadline);

  std::string answer = receive_text(socket, proof_bytes + stream_header_bytes, deadline);
  bool refused = std::all_of(answer.begin(), answer.end(), [](char byte) { return byte == 0; });
  check_input(
      !refused,
      "store at {} refused the secret: the server and its clients must have the same secret",
      address);
  Proof server_proof{};
  std::memcpy(server_proof.data(), answer.data(), proof_bytes);
  check_input(equal(server_proof, key.server_proof(nonces)),
              "store at {} could not prove that it knows the secret: it may belong to another run "
              "or program",
              address);

  ClientStreams streams{Sealer(key.key_to_server(nonces)),
                        Opener(key.key_to_client(nonces), answer.substr(proof_bytes))};
  sys::send_all(socket, sys::bytes_of(streams.to_server.header()), deadline);
  return streams;
}

}  // namespace lockstep::store
