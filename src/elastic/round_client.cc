#include "elastic/round_client.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/rendezvous/meeting.h"
#include "rank_env/round_keys.h"
#include "rank_env/variables.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>

#include <limits>
#include <sstream>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

namespace key = rank_env::round_key;

// Sleep between two polls of a worker that waits for the next round.
constexpr auto between_looks = std::chrono::milliseconds(2);

int number_of(std::int64_t round) { return static_cast<int>(round); }

std::string key_of_mark(int call, const std::string& name) {
  const std::string marks = "lockstep-round/marks/";
  return call == 0 ? marks + name : formatted("{}call-{}/{}", marks, call, name);
}

}  // namespace

std::optional<RoundPlace> place_in(const std::string& lines, const std::string& worker) {
  std::istringstream all(lines);
  std::optional<RoundPlace> place;
  std::string host_of_root;
  int size = 0;
  for (std::string line; std::getline(all, line);) {
    std::istringstream words(line);
    std::string rank, name, node, local_rank, local_world, host;
    words >> rank >> name >> node >> local_rank >> local_world >> host;
    check_input(!local_world.empty() && parse_integer(rank) == size,
                "the workers of a round: expected 'RANK WORKER NODE LOCAL_RANK LOCAL_WORLD HOST' "
                "of rank {}, found '{}'",
                size, escaped(line, 80));
    if (size == 0) host_of_root = host;
    if (name == worker) place = RoundPlace{.rank = size};
    ++size;
  }
  check_input(size > 0, "the workers of a round: expected at least one line, found none");
  if (!place) return std::nullopt;
  place->size = size;
  place->host = host_of_root;
  return place;
}

bool is_orderly(const std::string& end) { return end.starts_with("nodes join"); }

std::optional<RoundClient> RoundClient::of_environment(Duration timeout) {
  const std::optional<std::string> worker = environment::text(rank_env::variable::worker);
  const std::optional<std::string> store = environment::text(rank_env::variable::store);
  if (!worker || !store) return std::nullopt;
  const std::int64_t round = environment::required_integer(
      rank_env::variable::round, 0, std::numeric_limits<int>::max(), "but LOCKSTEP_WORKER is");
  return RoundClient(open_store(*store, rank_env::read_secret(), timeout), *worker, round);
}

void RoundClient::allow_hot_spares() const { store_->set(key::hot_spares, "1"); }

void RoundClient::survive() const {
  store_->set(key::of_survivors(number_of(round_)) + worker_, "1");
}

std::optional<std::string> RoundClient::ended() const {
  return store_->try_get(key::ended(number_of(round_)));
}

void RoundClient::say_final(const std::string& why) const {
  store_->set(key::final_failure(number_of(round_)), why);
}

bool RoundClient::are_nodes_fixed() const {
  // "--nnodes MIN:MAX --max-restarts N"
  std::istringstream words(store_->try_get(key::terms).value_or(""));
  std::string option, nodes;
  words >> option >> nodes;
  const std::size_t colon = nodes.find(':');
  return colon != std::string::npos && nodes.substr(0, colon) == nodes.substr(colon + 1);
}

std::optional<RoundPlace> RoundClient::next(Duration timeout) {
  store_->set(key::of_waiting(number_of(round_)) + worker_, "1");
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    const std::string text = store_->try_get(key::number).value_or("0");
    const std::optional<std::int64_t> newest = parse_integer(text);
    check_input(newest.has_value(), "{}: expected a number, found '{}'", key::number,
                escaped(text, 80));
    if (*newest > round_) {
      round_ = *newest;
      return place_in(store_->get(key::workers(number_of(round_)), deadline), worker_);
    }
    if (deadline.passed())
      throw Timeout(
          formatted("worker {} left round {} and timed out after {} waiting for the agent to begin "
                    "the next one",
                    worker_, round_, format_duration(timeout)));
    std::this_thread::sleep_for(between_looks);
  }
}

void RoundClient::set_flag(const std::string& name, const std::string& value) const {
  store_->set(key_of_mark(call_, name), value);
}

std::optional<std::string> RoundClient::flag(const std::string& name) const {
  return store_->try_get(key_of_mark(call_, name));
}

std::shared_ptr<Store> RoundClient::filtered(std::shared_ptr<Store> store) const {
  auto check = [rounds = *this, round = round_](Store&) {
    if (const std::optional<std::string> end = rounds.ended())
      throw PeerLost(formatted("round {} has ended: {}", round, *end));
    return true;
  };
  return std::make_shared<rendezvous::MeetingStore>(std::move(store), std::move(check));
}

// Returns what detect_rank() would read from the environment of a worker started for this round.
rank_env::RankInfo rank_info(const RoundPlace& place, std::int64_t round) {
  namespace variable = rank_env::variable;
  const std::string run = environment::text(variable::run_id).value_or("run");
  rank_env::RankInfo info{.rank = place.rank,
                          .size = place.size,
                          .attempt = formatted("{}/{}", run, round),
                          .rendezvous = {}};
  if (place.size == 1) return info;
  info.rendezvous = {.kind = rank_env::RankRendezvous::Kind::lockstep_store,
                     .address = environment::required_text(variable::store),
                     .host = place.host.empty()
                                 ? environment::text(variable::master_address).value_or("127.0.0.1")
                                 : place.host,
                     .port = 0};
  return info;
}

}  // namespace lockstep
