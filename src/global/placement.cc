#include <lockstep/global/placement.h>

#include "base/format.h"

namespace lockstep {

std::string describe(Placement placement) {
  switch (placement.kind()) {
    case Placement::Kind::replicate:
      return "Replicate";
    case Placement::Kind::partial:
      return formatted("Partial({})", name_of(placement.op()));
    default:
      return placement.parts() == 1
                 ? formatted("Shard({})", placement.dim())
                 : formatted("Shard({}, parts={})", placement.dim(), placement.parts());
  }
}

std::string describe(std::span<const Placement> placements) {
  std::vector<std::string> texts;
  for (Placement placement : placements) texts.push_back(describe(placement));
  return formatted("[{}]", listed(texts, ", "));
}

}  // namespace lockstep
