// A meeting of servers and workers that already share a group: its last ranks are servers.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/server/meeting.h>
#include <lockstep/store/store_server.h>

#include <memory>

namespace lockstep::ps {

struct GroupMeeting {
  Place place;
  // On rank 0: the server of the meeting's store. It must outlive every server and worker.
  std::unique_ptr<StoreServer> store_server;
};

// Collective. Throws InvalidArgument unless there are at least one server and one worker.
[[nodiscard]] GroupMeeting meet_in_group(Group& group, int servers);

}  // namespace lockstep::ps
