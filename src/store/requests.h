// Executes requests on a table, and holds requests that wait for keys.
#pragma once

#include "store/table.h"
#include "store/wire.h"

#include <lockstep/base/deadline.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

struct Outcome {
  std::optional<Message> reply;  // std::nullopt: keys are missing, the request must be parked
  std::string written;           // the key that was written, if any: parked requests may be ready
};

// Never throws because of a client's request: an invalid request is answered with `refused`.
[[nodiscard]] Outcome execute(Table& table, const Message& request);

// A get or wait with missing keys.
struct ParkedRequest {
  std::uint64_t connection = 0;
  Message request;
  Deadline deadline = Deadline::never();
  std::size_t missing = 0;  // index of the missing key under which it is stored
};

// The first two limits are per connection; the last one is for all connections together.
inline constexpr std::size_t max_parked = 4096;
inline constexpr std::size_t max_parked_bytes = 32 << 20;
inline constexpr std::size_t max_parked_bytes_of_all = 256 << 20;

// Each parked request is stored under one of its missing keys, and checked again only when that key
// is written: it is then ready, or it is stored under its next missing key.
class ParkedRequests {
 public:
  void add(ParkedRequest parked, const Table& table);
  // Removes and returns the requests that are ready after `key` was written.
  [[nodiscard]] std::vector<ParkedRequest> take_ready(std::string_view key, const Table& table);
  // Removes and returns the requests whose deadline has passed.
  [[nodiscard]] std::vector<ParkedRequest> take_late();
  void drop_connection(std::uint64_t connection);

  [[nodiscard]] std::size_t count(std::uint64_t connection) const;
  // Returns false if one more request would exceed the limit of its connection or of all
  // connections.
  [[nodiscard]] bool has_room(std::uint64_t connection, const Message& request) const;
  [[nodiscard]] Deadline next_deadline() const;

 private:
  struct Load {
    std::size_t count = 0, bytes = 0;
  };
  void keep(ParkedRequest parked, std::size_t missing);
  void take_off(const ParkedRequest& parked);

  std::multimap<std::string, ParkedRequest, std::less<>> by_missing_key_;
  std::map<std::uint64_t, Load> loads_;  // by connection
  std::size_t bytes_ = 0;                // of all connections
};

inline constexpr std::size_t max_disconnect_values = 16;
inline constexpr std::size_t max_disconnect_value_bytes = 64 << 10;

// Values that the server writes when a client's connection ends, if their keys have no value by
// then.
class DisconnectValues {
 public:
  // Adds a value and returns the reply to a request with Code::on_disconnect: `done`, or `refused`
  // without any change if the request is invalid or exceeds a limit.
  [[nodiscard]] Message add(const Message& request);

  [[nodiscard]] const std::map<std::string, std::string>& values() const { return values_; }

 private:
  std::map<std::string, std::string> values_;  // by key
};

}  // namespace lockstep::store
