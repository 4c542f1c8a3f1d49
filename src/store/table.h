// Table: the keys and values of a store and its operations, without locks and waiting; and the
// limits of keys and values, which every store checks first.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/store/store.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/wire.h"

namespace lockstep::store {

// Throws BadInput if the key is empty or longer than Store::max_key_bytes.
void check_key(std::string_view key);
// Throws BadInput if the value is longer than Store::max_value_bytes.
void check_value(std::string_view key, std::string_view value);

// Returns the new value for add(). Throws BadInput if the value is not a decimal number or the sum
// overflows.
[[nodiscard]] std::int64_t add_to_number(std::string_view key, std::string_view value,
                                         std::int64_t delta);

// Returns an exception such as "store: keys 'rank/2', 'rank/5' did not come within 5s"; names at
// most five keys.
[[nodiscard]] Timeout missing_keys(std::span<const std::string> missing, Duration waited);

// Callers must check the limits of keys and values first.
class Table {
 public:
  // set(), add() and compare_set() throw BadInput if the table would exceed `most_bytes`.
  explicit Table(std::size_t most_bytes = std::numeric_limits<std::size_t>::max())
      : most_bytes_(most_bytes) {}
  void set(std::string_view key, std::string_view value);
  // Returns null if the key is not set. The pointer is valid until the key changes.
  [[nodiscard]] const std::string* find(std::string_view key) const;
  // Throws BadInput as add_to_number() does.
  std::int64_t add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired);
  bool erase(std::string_view key);
  [[nodiscard]] std::vector<std::string> keys(std::string_view prefix) const;
  // Returns the missing ones of `keys`, in the same order.
  [[nodiscard]] std::vector<std::string> missing(std::span<const std::string> keys) const;

 private:
  void make_room(std::string_view key, std::size_t less, std::size_t more);

  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::map<std::string, std::string, std::less<>> values_;
};

// The replies that a server remembers for clients that can reconnect: if a client repeats a request
// that writes, the request is not executed again.

inline constexpr std::size_t session_bytes = 16;
// beyond it, the least recently used session is dropped
inline constexpr std::size_t most_sessions = 4096;
inline constexpr std::size_t most_replies = 64;  // per session; beyond it, the oldest is dropped
inline constexpr std::size_t most_reply_bytes = 64 << 10;  // limit for one remembered reply

// Returns true if a request may change the table, so that its reply must be remembered.
[[nodiscard]] bool writes(Code code);

class Sessions {
 public:
  // Returns the remembered reply to a request, or null.
  [[nodiscard]] const Message* find(std::string_view session, std::uint64_t request) const;
  // `reply.id` is the request's id. A reply that is too large is remembered without its parts.
  void remember(std::string_view session, Message reply);

  // Calls action(session, reply) for all replies, least recently used session first.
  template <typename Action>
  void for_each(Action action) const {
    for (const auto& [turn, name] : by_turn_)
      for (const Message& reply : sessions_.at(name).replies) action(name, reply);
  }

 private:
  struct Session {
    std::uint64_t turn = 0;  // of its last request
    std::deque<Message> replies;
  };
  std::map<std::string, Session, std::less<>> sessions_;
  std::map<std::uint64_t, std::string> by_turn_;
  std::uint64_t next_turn_ = 0;
};

}  // namespace lockstep::store
