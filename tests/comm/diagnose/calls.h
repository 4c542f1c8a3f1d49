// Calls for the tests of the messages in which ranks describe their calls.
#pragma once

#include "comm/call/record.h"

#include <chrono>
#include <source_location>
#include <string_view>

namespace lockstep::test {

inline CallRecord reduction(std::uint64_t number, std::int64_t elements = 1000,
                            std::string_view tag = {},
                            std::source_location where = std::source_location::current()) {
  return record_of({.collective = Collective::all_reduce,
                    .dtype = DType::float32,
                    .elements = elements,
                    .tag = tag,
                    .timeout = std::chrono::seconds(1),
                    .where = where,
                    .id = {.number = number}});
}

inline CallRecord message(Collective collective, int peer, std::int64_t elements,
                          std::source_location where = std::source_location::current()) {
  return record_of({.collective = collective,
                    .root = peer,
                    .dtype = DType::float32,
                    .elements = elements,
                    .timeout = std::chrono::seconds(1),
                    .where = where,
                    .id = {.number = 1}});
}

}  // namespace lockstep::test
