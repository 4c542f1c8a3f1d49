// The protocol between TcpStore and StoreServer. Numbers are little-endian; a sequence of bytes in
// braces is repeated.
//
// 1. The handshake, in the clear; client and server have the same key K = BLAKE2b(secret):
//
//      server:  magic[8]  server_nonce[32]
//      client:  magic[8]  client_nonce[32]  client_proof[32]
//      server:  server_proof[32]  server_header[24]         or, instead: 56 zero bytes, end
//      client:  client_header[24]
//
//    magic is "LSSTORE1". A proof is BLAKE2b keyed with K over a label of its side and both nonces
//    (handshake.h). The 56 zero bytes answer anything that is not a correct proof, so that they
//    reveal only "refused". The headers begin a libsodium secretstream (XChaCha20-Poly1305) in each
//    direction, with keys derived from K and both nonces.
//
// 2. Frames, in both directions:
//
//      frame   := length:u32  sealed[length]      length of the sealed bytes: message + 17
//      message := id:u64  code:u8  number:i64  count:u32  { part }
//      part    := length:u32  bytes[length]
//
//    A client chooses the ids of its requests; the reply has the id of its request. Replies come in
//    any order: a request that waits is answered when its keys are set.
//
//      request        number           parts              reply `done`
//      1 set                           key value
//      2 try_get                       key                value, or no part
//      3 get          timeout in ns    key                value
//      4 wait         timeout in ns    { key }
//      5 add          delta            key                number: the sum
//      6 compare_set                   key expected       value after the call
//                                      desired
//      7 erase                         key                number: 1 if the key was set
//      8 keys                          prefix             { key }
//      9 on_disconnect                 key value
//     10 session                       session[16]        name[16] of the store
//
//    A client that can reconnect begins each connection with request 10, under its own name, and
//    then repeats unanswered requests. The server never executes a writing request twice:
//    it remembers the replies of executed ones (table.h).
//
//      reply 101 done, as above; 102 late: the timeout has passed, parts: missing keys;
//      103 refused: part 1 is the text of a BadInput.
//
//    Example: request 7 sets "a" to "xyz". The message is
//
//      07 00 00 00 00 00 00 00  01  00 00 00 00 00 00 00 00  02 00 00 00
//      01 00 00 00  61   03 00 00 00  78 79 7a
//
//    33 bytes; sealed 50, so the frame begins with 32 00 00 00.
//
// Every length is checked against the limits below before memory is allocated for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/store/store.h>

namespace lockstep::store {

inline constexpr std::string_view magic = "LSSTORE1";

// Enough for compare_set with two values of the maximum size.
inline constexpr std::size_t max_message_bytes =
    2 * Store::max_value_bytes + Store::max_key_bytes + 64;
inline constexpr std::size_t max_parts = 1 << 16;

enum class Code : std::uint8_t {
  set = 1,
  try_get = 2,
  get = 3,
  wait = 4,
  add = 5,
  compare_set = 6,
  erase = 7,
  keys = 8,
  on_disconnect = 9,
  session = 10,
  done = 101,
  late = 102,
  refused = 103,
};

struct Message {
  std::uint64_t id = 0;
  Code code = Code::done;
  std::int64_t number = 0;
  std::vector<std::string> parts;

  bool operator==(const Message&) const = default;
};

// Throws InvalidArgument if the message exceeds a limit.
[[nodiscard]] std::string encode(const Message& message);
// Throws BadInput if the bytes are not a valid message: too short, too long, a length beyond a
// limit or the end, or an unknown code.
[[nodiscard]] Message decode(std::string_view bytes);

// Returns the four bytes with the length of the sealed message after them.
[[nodiscard]] std::string encode_length(std::size_t length);

// Splits a stream of bytes into frames. Allocates memory only for bytes that have arrived.
class FrameReader {
 public:
  // `overhead` is the number of bytes that sealing adds to a message.
  explicit FrameReader(std::size_t overhead) : overhead_(overhead) {}
  void append(std::string_view bytes) { buffer_ += bytes; }
  // Returns true if a frame is complete, and sets `sealed` to its content without the length.
  // Throws BadInput if a length is out of range.
  [[nodiscard]] bool next(std::string& sealed);
  // Returns the number of received bytes that do not form a complete frame yet.
  [[nodiscard]] std::size_t held() const { return buffer_.size() - used_; }

 private:
  std::size_t overhead_;
  std::string buffer_;
  std::size_t used_ = 0;  // bytes of the buffer that were returned
};

}  // namespace lockstep::store
