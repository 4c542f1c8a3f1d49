#include "store/disconnect_values.h"

#include "base/check.h"
#include "base/text.h"
#include "store/limits.h"

#include <lockstep/base/error.h>

namespace lockstep::store {

Message DisconnectValues::add(const Message& request) {
  try {
    check_input(request.parts.size() == 2,
                "store: expected a key and a value for the end of a connection, found {} parts",
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
