#include "comm/rendezvous/exchange.h"

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"

#include <lockstep/base/error.h>

#include <chrono>

namespace lockstep::rendezvous {
namespace {

std::string key_of(const Exchange& between, int rank) {
  return formatted("{}{}", between.prefix, rank);
}

std::string key_of_all(const std::string& key) { return key + "/all"; }

bool is_there(Store& store, const Exchange& between, int rank) {
  return store.try_get(key_of(between, rank)).has_value();
}

std::vector<int> missing_ranks(Store& store, const Exchange& between) {
  std::vector<int> missing;
  for (int rank = 0; rank < between.size; ++rank)
    if (!is_there(store, between, rank)) missing.push_back(rank);
  return missing;
}

[[noreturn]] void throw_missing(Store& store, const Exchange& between, Duration timeout) {
  throw Timeout(formatted("rank {} of {} timed out after {} waiting for {} {}", between.rank,
                          between.size, format_duration(timeout),
                          rank_list(missing_ranks(store, between)), between.purpose));
}

// The lowest rank that is present logs the missing ones. The other ranks stop at the first key that
// they find: all ranks call this at about the same time.
void remind(Store& store, const Exchange& between, Duration left) {
  for (int lower = 0; lower < between.rank; ++lower)
    if (is_there(store, between, lower)) return;
  const std::vector<int> missing = missing_ranks(store, between);
  if (missing.empty()) return;
  log::warning("rank {} of {} has waited {} for {} {}, and gives up in {}", between.rank,
               between.size, format_duration(between.remind_after), rank_list(missing),
               between.purpose, format_duration(std::chrono::ceil<std::chrono::seconds>(left)));
}

// `reminder`: set to never once the missing ranks have been named, and if there is no deadline.
std::string text_of(Store& store, const Exchange& between, int rank, Deadline deadline,
                    Deadline& reminder) {
  try {
    return store.get(key_of(between, rank), deadline.or_sooner(reminder));
  } catch (const Timeout&) {
    if (deadline.passed() || reminder.is_never()) throw;
  }
  reminder = Deadline::never();
  remind(store, between, deadline.left());
  return store.get(key_of(between, rank), deadline);
}

}  // namespace

std::vector<std::string> exchange(
    Store& store, const Exchange& between, std::string_view mine, Duration timeout,
    const std::function<void(int rank, const std::string& text)>& check) {
  const auto deadline = Deadline::after(timeout);
  store.set(key_of(between, between.rank), mine);
  auto reminder = deadline.is_never() ? deadline : Deadline::after(between.remind_after);
  std::vector<std::string> texts;
  for (int rank = 0; rank < between.size; ++rank) {
    try {
      texts.push_back(text_of(store, between, rank, deadline, reminder));
    } catch (const Timeout&) {
      throw_missing(store, between, timeout);
    }
    if (check) check(rank, texts.back());
  }
  return texts;
}

bool come_to(Store& store, const std::string& key, int count) {
  if (store.add(key, 1) != count) return false;
  store.set(key_of_all(key), "1");
  return true;
}

bool have_all_come(Store& store, const std::string& key) {
  return store.try_get(key_of_all(key)).has_value();
}

void wait_for_all(Store& store, const std::string& key, Deadline deadline) {
  static_cast<void>(store.get(key_of_all(key), deadline));
}

}  // namespace lockstep::rendezvous
