#include "store/sessions.h"

#include <algorithm>
#include <utility>

namespace lockstep::store {

bool writes(Code code) {
  return code == Code::set || code == Code::add || code == Code::compare_set || code == Code::erase;
}

const Message* Sessions::find(std::string_view session, std::uint64_t request) const {
  const auto place = sessions_.find(session);
  if (place == sessions_.end()) return nullptr;
  const auto& replies = place->second.replies;
  const auto reply = std::ranges::find(replies, request, &Message::id);
  return reply == replies.end() ? nullptr : &*reply;
}

void Sessions::remember(std::string_view session, Message reply) {
  auto place = sessions_.find(session);
  if (place == sessions_.end()) place = sessions_.emplace(session, Session{}).first;
  Session& known = place->second;
  if (!known.replies.empty()) by_turn_.erase(known.turn);
  known.turn = next_turn_++;
  by_turn_.emplace(known.turn, place->first);
  std::size_t bytes = 0;
  for (const std::string& part : reply.parts) bytes += part.size();
  if (bytes > most_reply_bytes) reply.parts.clear();
  known.replies.push_back(std::move(reply));
  if (known.replies.size() > most_replies) known.replies.pop_front();
  if (sessions_.size() <= most_sessions) return;
  sessions_.erase(by_turn_.begin()->second);
  by_turn_.erase(by_turn_.begin());
}

}  // namespace lockstep::store
