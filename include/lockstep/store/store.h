// Store: the small key-value space in which ranks find each other before any collective runs.
//
// Keys are short text, values are bytes. Every call is safe from any thread and is a round trip at
// most; only get() and wait() block. Errors: Timeout when a deadline passes (the text names the
// keys that are missing), PeerLost when the server has gone, BadInput when a length exceeds the
// limits below.
#pragma once

#include <lockstep/base/deadline.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class Store {
 public:
  static constexpr std::size_t max_key_bytes = 4096;
  static constexpr std::size_t max_value_bytes = 64 << 20;

  virtual ~Store() = default;

  // Sets or replaces a value.
  virtual void set(std::string_view key, std::string_view value) = 0;
  // The value, or nothing when the key is not there now.
  [[nodiscard]] virtual std::optional<std::string> try_get(std::string_view key) = 0;
  // Blocks until the key is there.
  [[nodiscard]] virtual std::string get(std::string_view key, Deadline deadline) = 0;
  // Blocks until all keys are there.
  virtual void wait(std::span<const std::string> keys, Deadline deadline) = 0;
  // Adds to the decimal number under key (0 when it is not there) and returns the sum, atomically.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  // Writes `desired` where the value equals `expected` ("" also means: not there); returns the
  // value that stands afterwards.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  // True when there was something to erase.
  virtual bool erase(std::string_view key) = 0;
  // The keys that begin with `prefix`, sorted.
  [[nodiscard]] virtual std::vector<std::string> keys(std::string_view prefix) = 0;
};

}  // namespace lockstep

#pragma GCC visibility pop
