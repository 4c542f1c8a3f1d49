// A meeting of servers and workers that have a group already: its last ranks are servers.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/server/meeting.h>
#include <lockstep/store/store_server.h>

#include <memory>

namespace lockstep::ps {

struct GroupMeeting {
  Place place;
  // On rank 0: what the store of the meeting is in. It outlives every server and worker.
  std::unique_ptr<StoreServer> store_server;
};

// Collective. InvalidArgument unless there are a server and a worker or more.
[[nodiscard]] GroupMeeting meet_in_group(Group& group, int servers);

}  // namespace lockstep::ps
