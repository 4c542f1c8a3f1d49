// What --elastic needs of the other options.
#pragma once

#include <lockstep/layout/mesh_layout.h>
#include <lockstep/train/options.h>

#include <cstdint>
#include <vector>

namespace lockstep::train {

// BadInput in one line for options that an elastic run cannot have.
void check_elastic(const Options& options);

// --slots, or what stands for 0.
[[nodiscard]] std::int64_t slots_of(const Options& options);

// How many ranks compute one copy of the model together: the product of the axes of --mesh that
// keep their sizes in all rounds. 1 without --mesh. BadInput for a mesh that is none.
[[nodiscard]] int ranks_of_a_model(const Options& options);

// The axes of --mesh in a round of so many ranks: dp and fsdp take what the others leave. Where
// both are there, fsdp has the largest size up to the given one that divides the copies; where
// neither is, dp comes first. Unchanged where the others do not divide the ranks.
[[nodiscard]] std::vector<MeshAxis> axes_of_round(std::vector<MeshAxis> axes, int ranks);

// With the number of slots, and of threads where none is given: a number that does not follow from
// how many ranks there are now, because the bits of some operations follow from it.
[[nodiscard]] Options elastic_options(Options options);

}  // namespace lockstep::train
