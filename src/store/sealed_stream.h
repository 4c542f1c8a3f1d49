// One direction of an encrypted connection. Third parties can neither read the messages nor change,
// drop, repeat or reorder them undetected (libsodium's crypto_secretstream).
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::store {

// Converts between text and the unsigned bytes that libsodium uses.
inline unsigned char* unsigned_bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

inline const unsigned char* unsigned_bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

template <std::size_t size>
std::string_view text_of(const std::array<unsigned char, size>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), size};
}

inline constexpr std::size_t stream_header_bytes = 24;
inline constexpr std::size_t seal_bytes = 17;
inline constexpr std::size_t stream_key_bytes = 32;

static_assert(stream_header_bytes == crypto_secretstream_xchacha20poly1305_HEADERBYTES);
static_assert(seal_bytes == crypto_secretstream_xchacha20poly1305_ABYTES);
static_assert(stream_key_bytes == crypto_secretstream_xchacha20poly1305_KEYBYTES);

using StreamKey = std::array<unsigned char, stream_key_bytes>;

class Sealer {
 public:
  explicit Sealer(const StreamKey& key);
  // Returns the header, which must be sent to the other side before the first frame.
  [[nodiscard]] const std::string& header() const { return header_; }
  // Returns a complete frame including its length.
  [[nodiscard]] std::string seal(std::string_view message);

 private:
  crypto_secretstream_xchacha20poly1305_state state_{};
  std::string header_;
};

class Opener {
 public:
  // Throws BadInput if the header is invalid.
  Opener(const StreamKey& key, std::string_view header);
  // Decrypts the content of a frame, given without its length. Throws BadInput unless `sealed` is
  // the next frame that the other side sealed.
  [[nodiscard]] std::string open(std::string_view sealed);

 private:
  crypto_secretstream_xchacha20poly1305_state state_{};
};

}  // namespace lockstep::store
