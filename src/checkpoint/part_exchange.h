// What all ranks have of a file's tensors, on every rank.
#pragma once

#include "checkpoint/file_part.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// Collective: every rank's list, in rank order.
[[nodiscard]] std::vector<std::vector<PartDescription>> exchange_parts(
    Group& group, std::span<const PartDescription> own);

// Collective: the names that any rank has.
[[nodiscard]] std::set<std::string> names_of_all(Group& group, const std::set<std::string>& own);

// The words that travel.
[[nodiscard]] std::vector<std::int64_t> encoded(std::span<const PartDescription> parts);
[[nodiscard]] std::vector<PartDescription> decoded(std::span<const std::int64_t> words);

}  // namespace lockstep::checkpoint
