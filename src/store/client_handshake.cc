#include "store/client_handshake.h"

#include "base/check.h"
#include "store/unsigned_bytes.h"
#include "store/wire.h"
#include "sys/sockets.h"

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

ClientStreams shake_hands(int socket, std::string_view address, const StoreKey& key,
                          Deadline deadline) {
  std::string greeting = receive_text(socket, magic.size() + nonce_bytes, deadline);
  check_input(greeting.starts_with(magic), "{} is no Lockstep store", address);
  Nonces nonces{.server = {}, .client = random_nonce()};
  std::memcpy(nonces.server.data(), greeting.data() + magic.size(), nonce_bytes);

  std::string proof(magic);
  proof.append(text_of(nonces.client)).append(text_of(key.client_proof(nonces)));
  sys::send_all(socket, sys::bytes_of(proof), deadline);

  std::string answer = receive_text(socket, proof_bytes + stream_header_bytes, deadline);
  bool refused = std::all_of(answer.begin(), answer.end(), [](char byte) { return byte == 0; });
  check_input(!refused, "store at {} refused the secret: give the server and its clients the same",
              address);
  Proof server_proof{};
  std::memcpy(server_proof.data(), answer.data(), proof_bytes);
  check_input(equal(server_proof, key.server_proof(nonces)),
              "store at {} could not prove that it knows the secret: is it another program's?",
              address);

  ClientStreams streams{Sealer(key.key_to_server(nonces)),
                        Opener(key.key_to_client(nonces), answer.substr(proof_bytes))};
  sys::send_all(socket, sys::bytes_of(streams.to_server.header()), deadline);
  return streams;
}

}  // namespace lockstep::store
