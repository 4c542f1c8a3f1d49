// Names of the keys that rounds.h lists.
#pragma once

#include "base/format.h"

#include <string>

namespace lockstep::rank_env::round_key {

inline constexpr const char* name = "lockstep-run/name";
inline constexpr const char* terms = "lockstep-run/terms";
inline constexpr const char* agents = "lockstep-run/agents";
inline constexpr const char* epoch = "lockstep-run/epoch";
inline constexpr const char* failure = "lockstep-run/failure";
inline constexpr const char* result = "lockstep-run/result";
inline constexpr const char* number = "lockstep-round/number";
inline constexpr const char* hot_spares = "lockstep-round/hot-spares";

// Prefixes that end in '/': each is shared by all keys of its kind.
inline constexpr const char* of_agents = "lockstep-run/agents/";
inline constexpr const char* of_gone = "lockstep-run/gone/";

// The value that the server writes under gone/N when the connection of that agent ends.
inline constexpr const char* gone_without_a_word =
    "its agent is gone: it was killed, or its host cannot be reached";

inline std::string agent(int node) { return of_agents + std::to_string(node); }
inline std::string gone(int node) { return of_gone + std::to_string(node); }
inline std::string heartbeat(int node) { return formatted("lockstep-run/heartbeat/{}", node); }
inline std::string join_request(int round, int node) {
  return formatted("lockstep-run/joins/{}/{}", round, node);
}
inline std::string plan(int round) { return formatted("lockstep-run/plans/{}", round); }
inline std::string of_done(int round) { return formatted("lockstep-run/done/{}/", round); }
inline std::string epoch_of(std::int64_t number) { return formatted("{}/{}", epoch, number); }

// The counter of a rank's calls of init() (comm/rendezvous/meeting.h).
inline std::string inits_of(const std::string& run, int round, int rank) {
  return formatted("lockstep/{}/{}/round/{}", run, round, rank);
}

inline std::string workers(int round) { return formatted("lockstep-round/{}/workers", round); }
inline std::string ended(int round) { return formatted("lockstep-round/{}/ended", round); }
inline std::string final_failure(int round) { return formatted("lockstep-round/{}/final", round); }
inline std::string of_survivors(int round) {
  return formatted("lockstep-round/{}/survivors/", round);
}
inline std::string of_waiting(int round) { return formatted("lockstep-round/{}/waiting/", round); }

}  // namespace lockstep::rank_env::round_key
