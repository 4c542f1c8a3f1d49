// Store: the key-value space through which ranks find each other before the first collective.
//
// Keys are short text, values are bytes. Every call is thread-safe and takes at most one round
// trip; only get() and wait() block. Throws Timeout if a deadline passes (the message names the
// missing keys), PeerLost if the server is gone, and BadInput if a length exceeds the limits below.
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

  // Sets the value of `key`, replacing an earlier one.
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Returns the value of `key`, or std::nullopt if the key is not set.
  [[nodiscard]] virtual std::optional<std::string> try_get(std::string_view key) = 0;
  // Blocks until `key` is set, and returns its value.
  [[nodiscard]] virtual std::string get(std::string_view key, Deadline deadline) = 0;
  // Blocks until all keys are set.
  virtual void wait(std::span<const std::string> keys, Deadline deadline) = 0;
  // Atomically adds `delta` to the decimal number stored under `key` (0 if the key is not set) and
  // returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  // Atomically writes `desired` if the current value equals `expected`; an empty `expected` also
  // matches a key that is not set. Returns the value after the call.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  // Removes `key`. Returns true if the key was set.
  virtual bool erase(std::string_view key) = 0;
  // Returns the keys that begin with `prefix`, sorted.
  [[nodiscard]] virtual std::vector<std::string> keys(std::string_view prefix) = 0;
};

}  // namespace lockstep

#pragma GCC visibility pop
