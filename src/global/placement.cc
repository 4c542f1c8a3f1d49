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
      return formatted("Shard({}{}{})", placement.dim(),
                       placement.parts() == 1 ? "" : formatted(", parts={}", placement.parts()),
                       placement.is_zigzag() ? ", zigzag" : "");
  }
}

std::string describe(std::span<const Placement> placements) {
  std::vector<std::string> texts;
  for (Placement placement : placements) texts.push_back(describe(placement));
  return formatted("[{}]", listed(texts, ", "));
}

}  // namespace lockstep
