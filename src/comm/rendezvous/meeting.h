// How ranks meet through the store: exchange() of texts, the handshake of init(), and the store
// that they use meanwhile.
#pragma once

#include "rank_env/rank_info.h"

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/base/deadline.h>
#include <lockstep/store/prefix_store.h>
#include <lockstep/store/store.h>
#include <lockstep/store/store_server.h>

namespace lockstep::rendezvous {

// Returns `store` with shared ownership of the server: the server lives as long as the result.
[[nodiscard]] std::shared_ptr<Store> keep_serving(std::shared_ptr<StoreServer> server,
                                                  std::shared_ptr<Store> store);

// Every rank publishes one text and reads those of the others.
//
// Keys of an exchange: "<prefix><rank>" holds the rank's text. Keys of a meeting: "<key>" counts
// the ranks that have arrived; "<key>/all" is set once all have arrived.
struct AllgatherOptions {
  std::string prefix;  // of the keys; unique on this store
  int rank = 0;
  int size = 1;
  std::string purpose;  // the end of a timeout's message: "to call init()"
  // After this time, the lowest rank that is present logs which ranks are missing, because a rank
  // that has ended may go unnoticed.
  Duration remind_after = std::chrono::seconds(20);
};
// Blocks until all ranks have published their texts, and returns the texts by rank. Calls
// `check(rank, text)`, if given, for each text in rank order; `check` may throw. Throws Timeout:
// "rank 0 of 3 timed out after 1m waiting for ranks 1, 2 to call init()".
[[nodiscard]] std::vector<std::string> allgather_text(
    Store& store, const AllgatherOptions& between, std::string_view mine, Duration timeout,
    const std::function<void(int rank, const std::string& text)>& check = {});

// Announces that this rank has arrived at `key`, where `count` ranks meet once. Returns true on the
// last rank to arrive.
bool barrier_arrive(Store& store, const std::string& key, int count);
// Returns true if all ranks have arrived.
[[nodiscard]] bool barrier_done(Store& store, const std::string& key);
// Blocks until all ranks have arrived. Throws Timeout, which names the key.
void barrier_wait(Store& store, const std::string& key, Deadline deadline);

// Handshake: every rank publishes its world size, host, requested backend and usable devices, and
// compares the settings of all ranks.
//
// Keys, under "lockstep/<attempt>/": "round/<rank>" counts the calls of init() of one rank, so that
// the n-th calls of all ranks meet; "<n>/hello/<rank>" holds five lines of that rank: world size,
// version, backend, host, and the names of its devices, separated by spaces; "<n>/refused/<rank>"
// is set if the rank fails because its lines differ from another rank's.
struct WorldInfo {
  std::shared_ptr<Store> store;    // the part of the store that belongs to these ranks
  std::vector<std::string> hosts;  // of each rank
  std::vector<std::vector<std::string>> devices;  // names of those that each rank may use
  int local_size = 1;                             // ranks on this rank's host

  [[nodiscard]] bool is_one_host() const { return local_size == static_cast<int>(hosts.size()); }
};

// Blocks until all ranks have arrived. `backend` is the backend requested on this rank, or "";
// `devices` names the devices that it may use. Throws BadInput if the settings of two ranks differ,
// and Timeout, which names the missing ranks.
[[nodiscard]] WorldInfo handshake(const std::shared_ptr<Store>& store,
                                  const rank_env::RankInfo& info, std::string_view backend,
                                  std::span<const std::string> devices, Deadline deadline);

// Wraps a store for ranks that are about to meet. A rank that waits in it for a rank that will
// never come learns of that within a moment, not at its deadline.
class MeetingStore : public PrefixStore {
 public:
  // Called periodically while a call waits; must be thread-safe. Throws if the ranks can no longer
  // meet; returns false if it will never throw. Must not call get() or wait() of the store.
  using Check = std::function<bool(Store& store)>;

  MeetingStore(std::shared_ptr<Store> below, Check check)
      : PrefixStore("", std::move(below)), check_(std::move(check)) {}

  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;

 private:
  void wait_in_parts(Deadline deadline, const std::function<void(Deadline)>& wait);

  const Check check_;
};

}  // namespace lockstep::rendezvous
