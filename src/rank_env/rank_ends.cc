#include "rank_env/rank_ends.h"

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>

#include <chrono>
#include <utility>

namespace lockstep::rank_env {
namespace {

constexpr std::chrono::seconds store_timeout{5};
constexpr std::chrono::seconds end_timeout{1};

std::string keys_of_ends(std::string_view attempt) {
  return formatted("lockstep-run/ended/{}/", attempt);
}

}  // namespace

struct RankEnds::Writer {
  std::string address, secret;
  std::shared_ptr<Store> store = {};

  void write(const std::string& key, const std::string& how) {
    try {
      if (!store) store = open_store(address, secret, store_timeout);
      store->set(key, how);
    } catch (const std::exception& error) {
      log::debug("a rank's end could not be published: {}", error.what());
    }
  }
};

RankEnds::RankEnds(std::string address, std::string secret)
    : writer_(std::make_shared<Writer>(Writer{std::move(address), std::move(secret)})) {}

RankEnds::~RankEnds() { static_cast<void>(queue_.end(end_timeout)); }

void RankEnds::tell(std::string_view attempt, int rank, std::string_view how) {
  queue_.push([writer = writer_, key = formatted("{}{}", keys_of_ends(attempt), rank),
               how = std::string(how)] { writer->write(key, how); });
}

void check_rank_ends(Store& store, std::string_view attempt, int self) {
  const std::string begin = keys_of_ends(attempt);
  for (const std::string& key : store.keys(begin)) {
    const auto rank = parse_integer(std::string_view(key).substr(begin.size()));
    const auto how = store.try_get(key);
    if (!rank || !how || *rank == self) continue;
    throw PeerLost(formatted("rank {} ended ({}) before all ranks had met in init()", *rank, *how));
  }
}

}  // namespace lockstep::rank_env
