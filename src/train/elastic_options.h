// What --elastic needs of the other options.
#pragma once

#include <lockstep/train/options.h>

#include <cstdint>

namespace lockstep::train {

// BadInput in one line for options that an elastic run cannot have.
void check_elastic(const Options& options);

// --slots, or what stands for 0.
[[nodiscard]] std::int64_t slots_of(const Options& options);

// With the number of slots, and of threads where none is given: a number that does not follow from
// how many ranks there are now, because the bits of some operations follow from it.
[[nodiscard]] Options elastic_options(Options options);

}  // namespace lockstep::train
