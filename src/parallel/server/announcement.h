// What servers and workers write into the store to find each other.
//
// Keys: "server/<k>" what server k says of itself; "worker/<n>" that there is a worker n; "late"
// counts the workers that came late; "join/<i>" what the i-th of all says, or that the run ended
// (run_is_over), which a server writes when its last worker has left: so all servers take the same
// workers; "pair/<i>/<k>/..." where that worker and server k meet.
#pragma once

#include <lockstep/parallel/server/server.h>

#include <string>
#include <string_view>

namespace lockstep::ps {

struct Announcement {
  std::string options;  // of a server: what must be equal in all
  int number = 0;       // of the server or worker
  std::string host;     // its identity: equal on one host
  std::string address;  // by which others find that machine
  std::string process;  // tells it from another one that says the same

  [[nodiscard]] std::string text() const;
};
// BadInput when the text was not made by that.
[[nodiscard]] Announcement announcement_of(std::string_view text);

// Of this process.
[[nodiscard]] Announcement own_announcement(std::string options, int number);

// "servers 1, workers 3, stale_synchronous, staleness 4"
[[nodiscard]] std::string describe_options(const Meeting& meeting, const ServerOptions& options);

// The engine between two: what the meeting says, else shm inside a host and gloo between two.
[[nodiscard]] std::string backend_between(const Meeting& meeting, const Announcement& a,
                                          const Announcement& b);

// By which `other` reaches this machine over gloo.
[[nodiscard]] std::string address_towards(const Announcement& own, const Announcement& other);

// In place of the announcement of one more worker: there will be none.
inline constexpr std::string_view run_is_over = "over";

[[nodiscard]] std::string server_key(int server);
[[nodiscard]] std::string join_key(std::int64_t join);
[[nodiscard]] std::string pair_prefix(std::int64_t join, int server);

// InvalidArgument in one line for counts below 1, times that are not positive, no store, an engine
// that is neither shm nor gloo.
void check_meeting(const Meeting& meeting);

}  // namespace lockstep::ps
