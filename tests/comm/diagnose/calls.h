// Calls for the tests of what ranks state about theirs.
#pragma once

#include "comm/backend/posted_call.h"

#include <ATen/ops/empty.h>

namespace lockstep::test {

inline PostedCall reduction(std::uint64_t number, std::int64_t elements = 1000,
                            std::string_view tag = {},
                            std::source_location where = std::source_location::current()) {
  auto tensor = at::empty({elements});
  return {{.collective = Collective::all_reduce,
           .input = tensor,
           .output = tensor,
           .tag = tag,
           .timeout = std::chrono::seconds(1),
           .where = where},
          number};
}

}  // namespace lockstep::test
