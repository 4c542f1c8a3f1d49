#include "store/sealed_stream.h"

#include "base/check.h"
#include "store/wire.h"

namespace lockstep::store {

Sealer::Sealer(const StreamKey& key) : header_(stream_header_bytes, '\0') {
  crypto_secretstream_xchacha20poly1305_init_push(&state_, unsigned_bytes_of(header_), key.data());
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

Opener::Opener(const StreamKey& key, std::string_view header) {
  bool ok = header.size() == stream_header_bytes &&
            crypto_secretstream_xchacha20poly1305_init_pull(&state_, unsigned_bytes_of(header),
                                                            key.data()) == 0;
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

}  // namespace lockstep::store
