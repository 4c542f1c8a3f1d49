#include "store/table.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <utility>

namespace lockstep::store {
namespace {

constexpr std::size_t entry_bytes = 128;  // overhead of a key and its value

}  // namespace

void check_key(std::string_view key) {
  check_input(!key.empty() && key.size() <= Store::max_key_bytes,
              "store: expected a key of 1 to {} bytes, found {}", Store::max_key_bytes, key.size());
}

void check_value(std::string_view key, std::string_view value) {
  check_input(value.size() <= Store::max_value_bytes,
              "store: expected a value of at most {} for key '{}', found {}",
              format_bytes(Store::max_value_bytes), key,
              format_bytes(static_cast<std::int64_t>(value.size())));
}

std::int64_t add_to_number(std::string_view key, std::string_view value, std::int64_t delta) {
  auto number = parse_integer(value);
  check_input(number.has_value(),
              "store: adding to key '{}': expected a decimal number, found '{}'", key,
              value.substr(0, 40));
  std::int64_t sum = 0;
  check_input(!__builtin_add_overflow(*number, delta, &sum),
              "store: adding {} to {} under key '{}' overflows 64 bits", delta, *number, key);
  return sum;
}

Timeout missing_keys(std::span<const std::string> missing, Duration waited) {
  constexpr std::size_t most_named = 5;
  std::string names;
  for (std::size_t i = 0; i < missing.size() && i < most_named; ++i) {
    names += formatted("{}'{}'", i == 0 ? "" : ", ", missing[i]);
  }
  if (missing.size() > most_named) names += formatted(" and {} more", missing.size() - most_named);
  return Timeout(formatted("store: {} {} did not come within {}",
                           missing.size() == 1 ? "key" : "keys", names, format_duration(waited)));
}

void Table::set(std::string_view key, std::string_view value) {
  auto place = values_.find(key);
  if (place == values_.end()) {
    make_room(key, 0, entry_bytes + key.size() + value.size());
    values_.emplace(key, value);
  } else {
    make_room(key, place->second.size(), value.size());
    place->second = value;
  }
}

void Table::make_room(std::string_view key, std::size_t less, std::size_t more) {
  const std::size_t bytes = bytes_ - less + more;
  check_input(bytes <= most_bytes_ || more <= less,
              "store: no room for key '{}': expected keys and values of at most {} together",
              escaped(key, 100), format_bytes(static_cast<std::int64_t>(most_bytes_)));
  bytes_ = bytes;
}

const std::string* Table::find(std::string_view key) const {
  auto place = values_.find(key);
  return place == values_.end() ? nullptr : &place->second;
}

std::int64_t Table::add(std::string_view key, std::int64_t delta) {
  const std::string* value = find(key);
  std::int64_t sum = add_to_number(key, value != nullptr ? *value : "0", delta);
  set(key, std::to_string(sum));
  return sum;
}

std::string Table::compare_set(std::string_view key, std::string_view expected,
                               std::string_view desired) {
  const std::string* value = find(key);
  if ((value != nullptr ? *value : "") != expected) return value != nullptr ? *value : "";
  set(key, desired);
  return std::string(desired);
}

bool Table::erase(std::string_view key) {
  auto place = values_.find(key);
  if (place == values_.end()) return false;
  bytes_ -= entry_bytes + place->first.size() + place->second.size();
  values_.erase(place);
  return true;
}

std::vector<std::string> Table::keys(std::string_view prefix) const {
  std::vector<std::string> found;
  for (auto place = values_.lower_bound(prefix); place != values_.end(); ++place) {
    if (!place->first.starts_with(prefix)) break;
    found.push_back(place->first);
  }
  return found;
}

std::vector<std::string> Table::missing(std::span<const std::string> keys) const {
  std::vector<std::string> found;
  for (const std::string& key : keys) {
    if (find(key) == nullptr) found.push_back(key);
  }
  return found;
}

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
