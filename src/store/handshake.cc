#include "store/handshake.h"

#include "base/check.h"
#include "sys/random_bytes.h"
#include "sys/sockets.h"

#include <lockstep/base/error.h>

#include <algorithm>

namespace lockstep::store {

Sealer::Sealer(std::string_view key) : header_(stream_header_bytes, '\0') {
  crypto_secretstream_xchacha20poly1305_init_push(&state_, unsigned_bytes_of(header_),
                                                  unsigned_bytes_of(key));
}

std::string Sealer::seal(std::string_view message) {
  std::string frame = encode_length(message.size() + seal_bytes);
  std::size_t start = frame.size();
  frame.resize(start + message.size() + seal_bytes);
  crypto_secretstream_xchacha20poly1305_push(&state_, unsigned_bytes_of(frame) + start, nullptr,
                                             unsigned_bytes_of(message), message.size(), nullptr, 0,
                                             0);
  return frame;
}

Opener::Opener(std::string_view key, std::string_view header) {
  bool ok = header.size() == stream_header_bytes &&
            crypto_secretstream_xchacha20poly1305_init_pull(&state_, unsigned_bytes_of(header),
                                                            unsigned_bytes_of(key)) == 0;
  check_input(ok, "store: the encrypted stream has an invalid header");
}

std::string Opener::open(std::string_view sealed) {
  check_input(sealed.size() >= seal_bytes, "store: expected a sealed message, found {} bytes",
              sealed.size());
  std::string message(sealed.size() - seal_bytes, '\0');
  int outcome = crypto_secretstream_xchacha20poly1305_pull(
      &state_, unsigned_bytes_of(message), nullptr, nullptr, unsigned_bytes_of(sealed),
      sealed.size(), nullptr, 0);
  check_input(outcome == 0, "store: a message was changed in transit");
  return message;
}

namespace {

std::string receive_text(int socket, std::size_t size, Deadline deadline) {
  std::string text(size, '\0');
  sys::receive_exact(socket, std::as_writable_bytes(std::span(text)), deadline);
  return text;
}

}  // namespace

StoreKey::StoreKey(std::string_view secret) {
  if (sodium_init() < 0) throw SystemError("starting libsodium", 0);
  constexpr std::string_view label = "lockstep store: key of the secret";
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, key_.size());
  crypto_generichash_update(&state, unsigned_bytes_of(label), label.size());
  crypto_generichash_update(&state, unsigned_bytes_of(secret), secret.size());
  crypto_generichash_final(&state, key_.data(), key_.size());
}

StoreKey::~StoreKey() { sodium_memzero(key_.data(), key_.size()); }

std::string StoreKey::derive(std::string_view label, const Nonces& nonces) const {
  std::string result(proof_bytes, '\0');
  crypto_generichash_state state;
  crypto_generichash_init(&state, key_.data(), key_.size(), result.size());
  for (std::string_view part :
       {label, std::string_view(nonces.server), std::string_view(nonces.client)})
    crypto_generichash_update(&state, unsigned_bytes_of(part), part.size());
  crypto_generichash_final(&state, unsigned_bytes_of(result), result.size());
  return result;
}

bool equal(std::string_view a, std::string_view b) {
  return sodium_memcmp(a.data(), b.data(), proof_bytes) == 0;
}

ClientStreams shake_hands(int socket, std::string_view address, const StoreKey& key,
                          Deadline deadline) {
  std::string greeting = receive_text(socket, magic.size() + nonce_bytes, deadline);
  check_input(greeting.starts_with(magic), "{} is not a Lockstep store", address);
  const Nonces nonces{.server = greeting.substr(magic.size()),
                      .client = sys::random_bytes(nonce_bytes)};

  std::string proof(magic);
  proof.append(nonces.client).append(key.derive(client_proof, nonces));
  sys::send_all(socket, sys::bytes_of(proof), deadline);

  std::string answer = receive_text(socket, proof_bytes + stream_header_bytes, deadline);
  check_input(
      answer.find_first_not_of('\0') != std::string::npos,
      "store at {} refused the secret: the server and its clients must have the same secret",
      address);
  check_input(equal(answer, key.derive(server_proof, nonces)),
              "store at {} could not prove that it knows the secret: it may belong to another run "
              "or program",
              address);

  ClientStreams streams{Sealer(key.derive(key_to_server, nonces)),
                        Opener(key.derive(key_to_client, nonces), answer.substr(proof_bytes))};
  sys::send_all(socket, sys::bytes_of(streams.to_server.header()), deadline);
  return streams;
}

namespace {

constexpr std::size_t proof_part_bytes = magic.size() + nonce_bytes + proof_bytes;

// Moves bytes from the front of `bytes` to `part` until `part` has `size` bytes. Returns true once
// it has.
bool fill(std::string& part, std::string_view& bytes, std::size_t size) {
  std::size_t count = std::min(size - part.size(), bytes.size());
  part += bytes.substr(0, count);
  bytes.remove_prefix(count);
  return part.size() == size;
}

}  // namespace

ServerSession::ServerSession(const StoreKey& key) : key_(key) {
  nonces_.server = sys::random_bytes(nonce_bytes);
  output_.append(magic).append(nonces_.server);
}

void ServerSession::receive(std::string_view bytes) {
  if (!sealer_ && fill(handshake_, bytes, proof_part_bytes)) read_proof();
  if (sealer_ && !opener_ && fill(handshake_, bytes, stream_header_bytes)) read_header();
  if (opener_) frames_.append(bytes);
}

void ServerSession::read_proof() {
  nonces_.client = handshake_.substr(magic.size(), nonce_bytes);
  const std::string_view proof = std::string_view(handshake_).substr(magic.size() + nonce_bytes);
  if (!equal(proof, key_.derive(client_proof, nonces_)) || !handshake_.starts_with(magic)) {
    output_.append(proof_bytes + stream_header_bytes, '\0');
    throw BadInput("store: a client did not know the secret");
  }
  sealer_.emplace(key_.derive(key_to_client, nonces_));
  output_.append(key_.derive(server_proof, nonces_)).append(sealer_->header());
  handshake_.clear();
}

void ServerSession::read_header() {
  opener_.emplace(key_.derive(key_to_server, nonces_), handshake_);
  handshake_.clear();
}

std::optional<Message> ServerSession::next() {
  std::string sealed;
  if (!opener_ || !frames_.next(sealed)) return std::nullopt;
  return decode(opener_->open(sealed));
}

void ServerSession::send(const Message& message) {
  check(proven(), "store: a reply to a client that has not proved the secret");
  output_ += sealer_->seal(encode(message));
}

void ServerSession::mark_sent(std::size_t bytes) {
  sent_ += bytes;
  bool much = sent_ >= (1 << 20);
  if (sent_ < output_.size() && !much) return;
  output_.erase(0, sent_);
  sent_ = 0;
  if (output_.empty()) output_.shrink_to_fit();
}

}  // namespace lockstep::store
