// The exchange through the store: every rank tells the others one text and learns theirs.
//
// Keys of an exchange: its prefix and a rank, for what that rank tells. Of ranks that meet: the key
// itself counts those that have come, and "<key>/all" says that all have.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

struct Exchange {
  std::string prefix;  // of the keys; no other exchange on this store has it
  int rank = 0;
  int size = 1;
  std::string purpose;  // ends the sentence of a timeout: "to call init()"
  // A rank may have ended, and nothing here tells: after so long the lowest rank that is here logs
  // which ranks are missing.
  Duration remind_after = std::chrono::seconds(20);
};
// Blocks until all texts are there, and returns them by rank. `check(rank, text)`, if any, is
// called for each as it comes, in rank order, and may throw. Timeout: "rank 0 of 3 timed out after
// 1m waiting for ranks 1, 2 to call init()".
[[nodiscard]] std::vector<std::string> exchange(
    Store& store, const Exchange& between, std::string_view mine, Duration timeout,
    const std::function<void(int rank, const std::string& text)>& check = {});

// Says that this rank has come to `key`, where `count` ranks meet once. True for the last of them.
bool come_to(Store& store, const std::string& key, int count);
// Whether all have come.
[[nodiscard]] bool have_all_come(Store& store, const std::string& key);
// Blocks until all have. Timeout names the key.
void wait_for_all(Store& store, const std::string& key, Deadline deadline);

}  // namespace lockstep::rendezvous
