// What a request does to a table, and the requests that must wait for keys.
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
  std::optional<Message> reply;  // none: the keys are not all there, park the request
  std::string written;           // the key that was written, if any: parked requests may be ready
};

// Never throws for what a client sent: a request that makes no sense is answered with `refused`.
[[nodiscard]] Outcome execute(Table& table, const Message& request);

// A get or wait whose keys are not all there.
struct ParkedRequest {
  std::uint64_t connection = 0;
  Message request;
  Deadline deadline = Deadline::never();
};

// Of one connection, and of all together.
inline constexpr std::size_t max_parked = 4096;
inline constexpr std::size_t max_parked_bytes = 32 << 20;
inline constexpr std::size_t max_parked_bytes_of_all = 256 << 20;

// Each parked request is filed under one of its missing keys and looked at again only when that key
// is written: then it is ready, or filed under the next missing one.
class ParkedRequests {
 public:
  void add(ParkedRequest parked, const Table& table);
  // Takes out those that are ready now that `key` was written.
  [[nodiscard]] std::vector<ParkedRequest> take_ready(std::string_view key, const Table& table);
  // Takes out those whose deadline has passed.
  [[nodiscard]] std::vector<ParkedRequest> take_late();
  void drop_connection(std::uint64_t connection);

  [[nodiscard]] std::size_t count(std::uint64_t connection) const;
  // False when one more would be too much for one connection, or for all.
  [[nodiscard]] bool has_room(std::uint64_t connection, const Message& request) const;
  [[nodiscard]] Deadline next_deadline() const;

 private:
  struct Load {
    std::size_t count = 0, bytes = 0;
  };
  void take_off(const ParkedRequest& parked);

  std::multimap<std::string, ParkedRequest, std::less<>> by_missing_key_;
  std::map<std::uint64_t, Load> loads_;  // by connection
  std::size_t bytes_ = 0;                // of all
};

inline constexpr std::size_t max_disconnect_values = 16;
inline constexpr std::size_t max_disconnect_value_bytes = 64 << 10;

// Values that a client wants written when its connection has ended, for keys that have no value by
// then.
class DisconnectValues {
 public:
  // The reply to a request with Code::on_disconnect: `done`, or `refused` when it makes no sense or
  // is too much; then nothing has changed.
  [[nodiscard]] Message add(const Message& request);

  [[nodiscard]] const std::map<std::string, std::string>& values() const { return values_; }

 private:
  std::map<std::string, std::string> values_;  // by key
};

}  // namespace lockstep::store
