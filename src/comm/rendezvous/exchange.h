// The exchange through the store: every rank publishes one text and reads those of the others.
//
// Keys of an exchange: its prefix and a rank, for that rank's text. Keys of a meeting: the key
// itself counts the ranks that have come, and "<key>/all" says that all have.
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
  std::string prefix;  // of the keys; unique on this store
  int rank = 0;
  int size = 1;
  std::string purpose;  // the end of a timeout's message: "to call init()"
  // A rank may have ended without any notice here: after this time, the lowest rank that is present
  // logs which ranks are missing.
  Duration remind_after = std::chrono::seconds(20);
};
// Blocks until all texts are there, and returns them by rank. Calls `check(rank, text)`, if any,
// for each text in rank order; it may throw. Throws Timeout: "rank 0 of 3 timed out after 1m
// waiting for ranks 1, 2 to call init()".
[[nodiscard]] std::vector<std::string> exchange(
    Store& store, const Exchange& between, std::string_view mine, Duration timeout,
    const std::function<void(int rank, const std::string& text)>& check = {});

// Announces that this rank has come to `key`, where `count` ranks meet once. Returns true for the
// last of them.
bool come_to(Store& store, const std::string& key, int count);
// Returns true if all have come.
[[nodiscard]] bool have_all_come(Store& store, const std::string& key);
// Blocks until all have come. Throws Timeout, which names the key.
void wait_for_all(Store& store, const std::string& key, Deadline deadline);

}  // namespace lockstep::rendezvous
