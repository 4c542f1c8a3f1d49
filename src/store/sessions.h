// What a server remembers of clients that come back after their connection has broken: the replies
// to requests that write, so that one that is sent again is not done again.
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
inline constexpr std::size_t most_sessions = 4096;  // the one that was quiet longest is forgotten
inline constexpr std::size_t most_replies = 64;     // of one session; the oldest is forgotten
inline constexpr std::size_t most_reply_bytes = 64 << 10;  // of one that is remembered

// Whether a request may change the table, so that its reply is remembered.
[[nodiscard]] bool writes(Code code);

class Sessions {
 public:
  // The reply that this request had; null when none is remembered.
  [[nodiscard]] const Message* find(std::string_view session, std::uint64_t request) const;
  // `reply.id` is the request's. A reply that is too large is remembered without its parts.
  void remember(std::string_view session, Message reply);

  // All, the session that was quiet longest first.
  template <typename Action>
  void for_each(Action action) const {
    for (const auto& [turn, name] : by_turn_)
      for (const Message& reply : sessions_.at(name).replies) action(name, reply);
  }

 private:
  struct Session {
    std::uint64_t turn = 0;  // when it was heard last
    std::deque<Message> replies;
  };
  std::map<std::string, Session, std::less<>> sessions_;
  std::map<std::uint64_t, std::string> by_turn_;
  std::uint64_t next_turn_ = 0;
};

}  // namespace lockstep::store
