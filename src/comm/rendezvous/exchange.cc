#include "comm/rendezvous/exchange.h"

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>

namespace lockstep::rendezvous {
namespace {

std::string key_of(const Exchange& between, int rank) {
  return formatted("{}{}", between.prefix, rank);
}

std::string key_of_all(const std::string& key) { return key + "/all"; }

[[noreturn]] void throw_missing(Store& store, const Exchange& between, Duration timeout) {
  std::vector<int> missing;
  for (int rank = 0; rank < between.size; ++rank) {
    if (!store.try_get(key_of(between, rank))) missing.push_back(rank);
  }
  throw Timeout(formatted("rank {} of {} timed out after {} waiting for {} {}", between.rank,
                          between.size, format_duration(timeout), rank_list(missing),
                          between.purpose));
}

}  // namespace

std::vector<std::string> exchange(
    Store& store, const Exchange& between, std::string_view mine, Duration timeout,
    const std::function<void(int rank, const std::string& text)>& check) {
  const auto deadline = Deadline::after(timeout);
  store.set(key_of(between, between.rank), mine);
  std::vector<std::string> texts;
  for (int rank = 0; rank < between.size; ++rank) {
    try {
      texts.push_back(store.get(key_of(between, rank), deadline));
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
