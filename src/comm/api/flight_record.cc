#include <lockstep/comm/flight_record.h>

#include "base/check.h"
#include "comm/api/group_state.h"
#include "rank_env/variables.h"

namespace lockstep {

std::string write_flight_record(const Group& group, const std::string& folder) {
  static_cast<void>(group.state_->backend());  // refuses a forked child
  auto* recorder = group.state_->recorder();
  check(recorder != nullptr, "the group {} ({}) keeps no flight record", group.name(),
        group.backend());
  const auto& place = folder.empty() ? recorder->header().folder : folder;
  check(!place.empty(), "where to write the flight record: pass a folder or set {}",
        rank_env::variable::flight_folder);
  return recorder->write(place);
}

}  // namespace lockstep
