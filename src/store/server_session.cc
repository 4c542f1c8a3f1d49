#include "store/server_session.h"

#include "base/check.h"
#include "store/sealed_stream.h"

#include <algorithm>
#include <cstring>

namespace lockstep::store {
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
  nonces_.server = random_nonce();
  output_.append(magic).append(text_of(nonces_.server));
}

void ServerSession::receive(std::string_view bytes) {
  if (!sealer_ && fill(handshake_, bytes, proof_part_bytes)) read_proof();
  if (sealer_ && !opener_ && fill(handshake_, bytes, stream_header_bytes)) read_header();
  if (opener_) frames_.append(bytes);
}

void ServerSession::read_proof() {
  std::string_view part = handshake_;
  std::memcpy(nonces_.client.data(), part.data() + magic.size(), nonce_bytes);
  Proof proof{};
  std::memcpy(proof.data(), part.data() + magic.size() + nonce_bytes, proof_bytes);
  bool known = equal(proof, key_.client_proof(nonces_)) && part.starts_with(magic);
  if (!known) {
    output_.append(proof_bytes + stream_header_bytes, '\0');
    throw BadInput("store: a client did not know the secret");
  }
  sealer_.emplace(key_.key_to_client(nonces_));
  output_.append(text_of(key_.server_proof(nonces_))).append(sealer_->header());
  handshake_.clear();
}

void ServerSession::read_header() {
  opener_.emplace(key_.key_to_server(nonces_), handshake_);
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
