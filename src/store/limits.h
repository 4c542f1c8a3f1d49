// What every store checks before it does anything, and the words of the errors they share.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/store/store.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::store {

// BadInput when it is empty or longer than Store::max_key_bytes.
void check_key(std::string_view key);
// BadInput when it is longer than Store::max_value_bytes.
void check_value(std::string_view key, std::string_view value);

// The number that add() counts on: BadInput when the value is no decimal number or would overflow.
[[nodiscard]] std::int64_t add_to_number(std::string_view key, std::string_view value,
                                         std::int64_t delta);

// "store: keys 'rank/2', 'rank/5' did not come within 5s"; names five at most.
[[nodiscard]] Timeout missing_keys(std::span<const std::string> missing, Duration waited);

}  // namespace lockstep::store
