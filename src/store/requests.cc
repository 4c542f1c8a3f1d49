#include "store/requests.h"

#include "base/check.h"
#include "base/text.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::store {
namespace {

void expect_parts(const Message& request, std::size_t count) {
  check_input(request.parts.size() == count,
              "store: expected {} as the number of parts in a request with code {}, found {}",
              count, static_cast<int>(request.code), request.parts.size());
}

std::size_t bytes_of(const Message& request) {
  std::size_t bytes = sizeof(ParkedRequest);
  for (const std::string& part : request.parts) bytes += sizeof(std::string) + part.size();
  return bytes;
}

// Returns the index of a missing key, or std::nullopt if all exist. Begins at index `first`: the
// keys before it existed when the request was stored, and may have been erased since. They are
// looked up again only if all others exist.
std::optional<std::size_t> missing_key(const std::vector<std::string>& keys, std::size_t first,
                                       const Table& table) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t index = (first + i) % keys.size();
    if (table.find(keys[index]) == nullptr) return index;
  }
  return std::nullopt;
}

Message done(const Message& request, std::vector<std::string> parts, std::int64_t number = 0) {
  return {request.id, Code::done, number, std::move(parts)};
}

Outcome set(Table& table, const Message& request) {
  expect_parts(request, 2);
  check_value(request.parts[0], request.parts[1]);
  table.set(request.parts[0], request.parts[1]);
  return {done(request, {}), request.parts[0]};
}

Outcome get(const Table& table, const Message& request) {
  expect_parts(request, 1);
  const std::string* value = table.find(request.parts[0]);
  if (value != nullptr) return {done(request, {*value}), {}};
  if (request.code == Code::get) return {};
  return {done(request, {}), {}};
}

Outcome wait(const Table& table, const Message& request) {
  bool ready = std::all_of(request.parts.begin(), request.parts.end(),
                           [&](const std::string& key) { return table.find(key) != nullptr; });
  return ready ? Outcome{done(request, {}), {}} : Outcome{};
}

Outcome add(Table& table, const Message& request) {
  expect_parts(request, 1);
  std::int64_t sum = table.add(request.parts[0], request.number);
  return {done(request, {}, sum), request.parts[0]};
}

Outcome compare_set(Table& table, const Message& request) {
  expect_parts(request, 3);
  check_value(request.parts[0], request.parts[2]);
  std::string value = table.compare_set(request.parts[0], request.parts[1], request.parts[2]);
  return {done(request, {std::move(value)}), request.parts[0]};
}

Outcome erase(Table& table, const Message& request) {
  expect_parts(request, 1);
  return {done(request, {}, table.erase(request.parts[0]) ? 1 : 0), {}};
}

Outcome keys(const Table& table, const Message& request) {
  expect_parts(request, 1);
  std::vector<std::string> found = table.keys(request.parts[0]);
  std::size_t bytes = 64;
  for (const std::string& key : found) bytes += key.size() + 4;
  check_input(found.size() <= max_parts && bytes <= max_message_bytes,
              "store: {} keys begin with '{}', more than fit into one reply", found.size(),
              request.parts[0]);
  return {done(request, std::move(found)), {}};
}

Outcome execute_checked(Table& table, const Message& request) {
  bool any_text = request.code == Code::keys;  // a prefix may be empty
  std::size_t keys_given = request.code == Code::wait ? request.parts.size() : 1;
  for (std::size_t i = 0; !any_text && i < std::min(keys_given, request.parts.size()); ++i) {
    check_key(request.parts[i]);
  }
  switch (request.code) {
    case Code::set:
      return set(table, request);
    case Code::try_get:
    case Code::get:
      return get(table, request);
    case Code::wait:
      return wait(table, request);
    case Code::add:
      return add(table, request);
    case Code::compare_set:
      return compare_set(table, request);
    case Code::erase:
      return erase(table, request);
    case Code::keys:
      return keys(table, request);
    case Code::on_disconnect:  // the connection handles these itself
    case Code::session:
    case Code::done:
    case Code::late:
    case Code::refused:
      break;
  }
  throw BadInput("store: expected a request to the table, found code " +
                 std::to_string(static_cast<int>(request.code)));
}

}  // namespace

Outcome execute(Table& table, const Message& request) {
  try {
    return execute_checked(table, request);
  } catch (const BadInput& error) {
    return {Message{request.id, Code::refused, 0, {error.what()}}, {}};
  }
}

void ParkedRequests::add(ParkedRequest parked, const Table& table) {
  const auto missing = missing_key(parked.request.parts, parked.missing, table);
  check(missing.has_value(), "store: a request waits although all of its keys exist");
  Load& load = loads_[parked.connection];
  ++load.count;
  load.bytes += bytes_of(parked.request);
  bytes_ += bytes_of(parked.request);
  keep(std::move(parked), *missing);
}

void ParkedRequests::keep(ParkedRequest parked, std::size_t missing) {
  parked.missing = missing;
  std::string key = parked.request.parts[missing];
  by_missing_key_.emplace(std::move(key), std::move(parked));
}

std::vector<ParkedRequest> ParkedRequests::take_ready(std::string_view key, const Table& table) {
  std::vector<ParkedRequest> ready;
  std::vector<std::pair<ParkedRequest, std::size_t>> waiting;  // with the next missing key
  auto [first, last] = by_missing_key_.equal_range(key);
  for (auto entry = first; entry != last; ++entry) {
    ParkedRequest& parked = entry->second;
    const auto missing = missing_key(parked.request.parts, parked.missing, table);
    if (missing)
      waiting.emplace_back(std::move(parked), *missing);
    else
      ready.push_back(std::move(parked));
  }
  by_missing_key_.erase(first, last);
  for (const ParkedRequest& parked : ready) take_off(parked);
  for (auto& [parked, missing] : waiting) keep(std::move(parked), missing);
  return ready;
}

std::vector<ParkedRequest> ParkedRequests::take_late() {
  std::vector<ParkedRequest> late;
  for (auto entry = by_missing_key_.begin(); entry != by_missing_key_.end();) {
    if (!entry->second.deadline.passed()) {
      ++entry;
      continue;
    }
    take_off(entry->second);
    late.push_back(std::move(entry->second));
    entry = by_missing_key_.erase(entry);
  }
  return late;
}

void ParkedRequests::drop_connection(std::uint64_t connection) {
  std::erase_if(by_missing_key_,
                [&](const auto& entry) { return entry.second.connection == connection; });
  auto place = loads_.find(connection);
  if (place == loads_.end()) return;
  bytes_ -= place->second.bytes;
  loads_.erase(place);
}

void ParkedRequests::take_off(const ParkedRequest& parked) {
  auto place = loads_.find(parked.connection);
  Load& load = place->second;
  load.bytes -= bytes_of(parked.request);
  bytes_ -= bytes_of(parked.request);
  if (--load.count == 0) loads_.erase(place);
}

std::size_t ParkedRequests::count(std::uint64_t connection) const {
  auto place = loads_.find(connection);
  return place == loads_.end() ? 0 : place->second.count;
}

bool ParkedRequests::has_room(std::uint64_t connection, const Message& request) const {
  auto place = loads_.find(connection);
  Load load = place == loads_.end() ? Load{} : place->second;
  const std::size_t bytes = bytes_of(request);
  return load.count < max_parked && load.bytes + bytes <= max_parked_bytes &&
         bytes_ + bytes <= max_parked_bytes_of_all;
}

Deadline ParkedRequests::next_deadline() const {
  Deadline next = Deadline::never();
  for (const auto& entry : by_missing_key_) next = next.or_sooner(entry.second.deadline);
  return next;
}

Message DisconnectValues::add(const Message& request) {
  try {
    check_input(request.parts.size() == 2,
                "store: expected a key and a value for the end of a connection, found parts: {}",
                request.parts.size());
    const std::string &key = request.parts[0], &value = request.parts[1];
    check_key(key);
    check_input(value.size() <= max_disconnect_value_bytes,
                "store: expected a value for the end of a connection of at most {}, found {}",
                format_bytes(max_disconnect_value_bytes),
                format_bytes(static_cast<std::int64_t>(value.size())));
    check_input(values_.size() < max_disconnect_values || values_.contains(key),
                "store: expected at most {} values for the end of a connection",
                max_disconnect_values);
    values_[key] = value;
  } catch (const BadInput& error) {
    return {request.id, Code::refused, 0, {error.what()}};
  }
  return {request.id, Code::done, 0, {}};
}

}  // namespace lockstep::store
