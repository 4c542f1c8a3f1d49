// Values that a client wants written when its connection has ended, for keys that have no value by
// then.
#pragma once

#include "store/wire.h"

#include <cstddef>
#include <map>
#include <string>

namespace lockstep::store {

inline constexpr std::size_t max_disconnect_values = 16;
inline constexpr std::size_t max_disconnect_value_bytes = 64 << 10;

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
