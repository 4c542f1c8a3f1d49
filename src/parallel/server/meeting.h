// The texts that servers and workers write to the store to find each other.
//
// Keys: "server/<k>", the announcement of server k; "worker/<n>", there is a worker n; "late", the
// number of workers that joined late; "join/<i>", the i-th announcement of all workers, or
// run_is_over, which a server writes when its last worker has left, so that all servers accept the
// same workers; "pair/<i>/<k>/...", the rendezvous of that worker and server k.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/server/meeting.h>
#include <lockstep/parallel/server/server.h>
#include <lockstep/store/store_server.h>

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::ps {

struct Announcement {
  std::string options;  // of a server: options that must be equal in all
  int number = 0;       // of the server or worker
  std::string host;     // its identity: equal on one host
  std::string address;  // the address of its host for others
  std::string process;  // distinguishes processes with the same texts

  [[nodiscard]] std::string text() const;
};
// Throws BadInput if the text was not made by text().
[[nodiscard]] Announcement announcement_of(std::string_view text);

// Returns the announcement of this process.
[[nodiscard]] Announcement own_announcement(std::string options, int number);

// Returns "servers 1, workers 3, stale_synchronous, staleness 4".
[[nodiscard]] std::string describe_options(const Meeting& meeting, const ServerOptions& options);

// Returns the backend between two processes: the meeting's choice, else shm within a host and gloo
// between hosts.
[[nodiscard]] std::string backend_between(const Meeting& meeting, const Announcement& a,
                                          const Announcement& b);

// Returns the address at which `other` reaches this host over gloo.
[[nodiscard]] std::string address_towards(const Announcement& own, const Announcement& other);

// Takes the place of the next worker's announcement: no more workers are accepted.
inline constexpr std::string_view run_is_over = "over";

[[nodiscard]] std::string server_key(int server);
[[nodiscard]] std::string join_key(std::int64_t join);
[[nodiscard]] std::string pair_prefix(std::int64_t join, int server);

// Throws InvalidArgument in one line for counts below 1, times that are not positive, a missing
// store, or a backend that is neither shm nor gloo.
void check_meeting(const Meeting& meeting);

// A meeting of servers and workers that already share a group: its last ranks are servers.
struct GroupMeeting {
  Role place;
  // On rank 0: the server of the meeting's store. It must outlive every server and worker.
  std::unique_ptr<StoreServer> store_server;
};

// Collective. Throws InvalidArgument unless there are at least one server and one worker.
[[nodiscard]] GroupMeeting meet_in_group(Group& group, int servers);

}  // namespace lockstep::ps
