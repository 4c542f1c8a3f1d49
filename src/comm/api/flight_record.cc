#include <lockstep/comm/flight_record.h>

#include <lockstep/base/check.h>
#include <lockstep/launch/environment.h>

#include "comm/api/group_state.h"
#include "comm/backend/recorded_backend.h"

namespace lockstep {

std::string write_flight_record(const Group& group, const std::string& folder) {
  auto* recorded = dynamic_cast<flight::RecordedBackend*>(group.state_->backend().get());
  check(recorded != nullptr, "the group {} ({}) keeps no flight record", group.name(),
        group.backend());
  auto& recorder = recorded->recorder();
  const auto& place = folder.empty() ? recorder.header().folder : folder;
  check(!place.empty(), "where to write the flight record: pass a folder or set {}",
        launch::variable::flight_folder);
  return recorder.write(place);
}

}  // namespace lockstep
