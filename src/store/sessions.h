// The replies that a server remembers for clients that can reconnect: if a client repeats a request
// that writes, the request is not executed again.
#pragma once

#include "store/wire.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

namespace lockstep::store {

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
