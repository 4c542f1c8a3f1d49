#include "store/wire.h"

#include "base/check.h"

#include <concepts>

namespace lockstep::store {
namespace {

constexpr std::size_t message_header_bytes = 8 + 1 + 8 + 4;

template <std::integral Number>
void put(std::string& bytes, Number number) {
  auto bits = static_cast<std::make_unsigned_t<Number>>(number);
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes += static_cast<char>(static_cast<std::uint64_t>(bits) >> (8 * i) & 0xff);
  }
}

// Reads values from the front of a message; throws if the message is too short.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}

  std::string_view take(std::size_t count) {
    check_input(count <= left_.size(), "store: expected {} more bytes in a message, found {}",
                count, left_.size());
    std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  template <std::integral Number>
  Number take_number() {
    std::uint64_t bits = 0;
    std::string_view bytes = take(sizeof(Number));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    return static_cast<Number>(bits);
  }

  [[nodiscard]] std::size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

bool is_known(std::uint8_t code) {
  return (code >= 1 && code <= 10) || (code >= 101 && code <= 103);
}

}  // namespace

std::string encode(const Message& message) {
  std::size_t size = message_header_bytes;
  for (const std::string& part : message.parts) size += 4 + part.size();
  check(size <= max_message_bytes && message.parts.size() <= max_parts,
        "store: expected a message of at most {} bytes and {} parts, found {} and {}",
        max_message_bytes, max_parts, size, message.parts.size());
  std::string bytes;
  bytes.reserve(size);
  put(bytes, message.id);
  put(bytes, static_cast<std::uint8_t>(message.code));
  put(bytes, message.number);
  put(bytes, static_cast<std::uint32_t>(message.parts.size()));
  for (const std::string& part : message.parts) {
    put(bytes, static_cast<std::uint32_t>(part.size()));
    bytes += part;
  }
  return bytes;
}

Message decode(std::string_view bytes) {
  Cursor cursor(bytes);
  Message message;
  message.id = cursor.take_number<std::uint64_t>();
  auto code = cursor.take_number<std::uint8_t>();
  check_input(is_known(code), "store: unknown code {} in a message", code);
  message.code = static_cast<Code>(code);
  message.number = cursor.take_number<std::int64_t>();
  auto count = cursor.take_number<std::uint32_t>();
  check_input(count <= max_parts, "store: expected at most {} parts in a message, found {}",
              max_parts, count);
  for (std::uint32_t i = 0; i < count; ++i) {
    auto length = cursor.take_number<std::uint32_t>();
    message.parts.emplace_back(cursor.take(length));
  }
  check_input(cursor.left() == 0, "store: found {} bytes after the end of a message",
              cursor.left());
  return message;
}

std::string encode_length(std::size_t length) {
  std::string bytes;
  put(bytes, static_cast<std::uint32_t>(length));
  return bytes;
}

bool FrameReader::next(std::string& sealed) {
  constexpr std::size_t length_bytes = 4;
  std::string_view ready = std::string_view(buffer_).substr(used_);
  bool whole = false;
  if (ready.size() >= length_bytes) {
    std::size_t length = Cursor(ready).take_number<std::uint32_t>();
    std::size_t least = overhead_ + message_header_bytes, most = overhead_ + max_message_bytes;
    check_input(length >= least && length <= most,
                "store: expected a frame of {} to {} bytes, found {}", least, most, length);
    whole = ready.size() >= length_bytes + length;
    if (whole) {
      sealed = ready.substr(length_bytes, length);
      used_ += length_bytes + length;
    }
  }
  if (!whole) {
    buffer_.erase(0, used_);
    used_ = 0;
    if (buffer_.empty()) buffer_.shrink_to_fit();
  }
  return whole;
}

}  // namespace lockstep::store
