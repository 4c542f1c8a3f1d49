#include "launch/environment.h"

#include "base/text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace lockstep::launch {

namespace {

std::size_t find(const Environment& environment, std::string_view name) {
  auto same = [&](const auto& entry) { return entry.first == name; };
  return static_cast<std::size_t>(std::find_if(environment.begin(), environment.end(), same) -
                                  environment.begin());
}

void set(Environment& environment, const char* name, std::string value) {
  std::size_t at = find(environment, name);
  if (at == environment.size()) environment.emplace_back(name, std::string());
  environment[at].second = std::move(value);
}

void set_if_absent(Environment& environment, const char* name, std::string value) {
  if (find(environment, name) == environment.size())
    environment.emplace_back(name, std::move(value));
}

void unset(Environment& environment, std::string_view name) {
  std::erase_if(environment, [&](const auto& entry) { return entry.first == name; });
}

void set_rank(Environment& environment, const RankSpec& place) {
  const std::string rank = std::to_string(place.rank), ranks = std::to_string(place.ranks);
  for (const char* name : {variable::rank, variable::role_rank}) set(environment, name, rank);
  for (const char* name : {variable::world_size, variable::role_world_size})
    set(environment, name, ranks);
  set(environment, variable::local_rank, std::to_string(place.local_rank));
  set(environment, variable::local_world_size, std::to_string(place.local_ranks));
  set(environment, variable::group_rank, std::to_string(place.node));
  set(environment, variable::group_world_size, std::to_string(place.nodes));
  set(environment, variable::role_name, "default");
  set(environment, variable::run_id, place.run_id);
  set(environment, variable::restart_count, std::to_string(place.restart));
  set(environment, variable::max_restarts, std::to_string(place.max_restarts));
}

void set_or_unset(Environment& environment, const char* name, const std::string& value) {
  if (value.empty())
    unset(environment, name);
  else
    set(environment, name, value);
}

void set_round(Environment& environment, const RankSpec& place) {
  set(environment, variable::agent, std::to_string(place.agent));
  set_or_unset(environment, variable::round, place.round < 0 ? "" : std::to_string(place.round));
  set_or_unset(environment, variable::worker, place.worker);
  set_or_unset(environment, variable::error_file, place.error_file);
}

void set_gpus(Environment& environment, const RankSpec& place) {
  if (!place.gpus.empty()) set(environment, variable::visible_gpus, place.gpus);
  if (place.shares_gpus) set(environment, variable::share_gpus, "1");
}

void set_rendezvous(Environment& environment, const RankSpec& place) {
  set(environment, variable::master_address, place.master_address);
  set(environment, variable::master_port, std::to_string(place.master_port));
  unset(environment, "TORCHELASTIC_USE_AGENT_STORE");
  unset(environment, variable::store);
  unset(environment, variable::secret_descriptor);
  unset(environment, variable::agent_descriptor);
  unset(environment, variable::hot_spare_descriptor);
  if (place.agent_descriptor >= 0)
    set(environment, variable::agent_descriptor, std::to_string(place.agent_descriptor));
  if (place.store.empty()) return;
  set(environment, variable::store, place.store);
  set(environment, variable::secret_descriptor, std::to_string(place.secret_descriptor));
}

constexpr std::array waiting_variables{variable::omp_wait_policy, variable::gomp_spin_count,
                                       variable::kmp_blocktime};

// Returns true if the user has set how idle OpenMP threads wait; the value that spin_briefly() sets
// does not count.
bool says_how_to_wait(const Environment& environment) {
  return std::ranges::any_of(environment, [](const auto& entry) {
    const bool is_own =
        entry.first == variable::gomp_spin_count && entry.second == rank_env::brief_spin;
    return !is_own && std::ranges::count(waiting_variables, entry.first) > 0;
  });
}

void fill_gaps(Environment& environment, const RankSpec& place) {
  set_if_absent(environment, variable::omp_threads,
                std::to_string(std::max(1, place.cores / place.local_ranks)));
  if (!says_how_to_wait(environment)) {
    const bool is_crowded = place.local_ranks > place.cores;
    if (is_crowded) set(environment, variable::omp_wait_policy, "passive");
    set(environment, variable::gomp_spin_count, is_crowded ? "0" : rank_env::brief_spin);
  }
  set_if_absent(environment, variable::python_unbuffered, "1");
}

// Returns true for the variables that a hot spare gets only together with its rank.
bool is_of_place(std::string_view name) {
  constexpr std::array names{variable::rank,
                             variable::world_size,
                             variable::local_rank,
                             variable::group_rank,
                             variable::group_world_size,
                             variable::local_world_size,
                             variable::role_rank,
                             variable::role_world_size,
                             variable::restart_count,
                             variable::master_address,
                             variable::master_port,
                             variable::error_file,
                             variable::round,
                             variable::worker};
  return std::ranges::find(names, name, [](const char* of) { return std::string_view(of); }) !=
         names.end();
}

}  // namespace

std::string_view value_of(const Environment& environment, std::string_view name) {
  const std::size_t at = find(environment, name);
  return at == environment.size() ? std::string_view() : environment[at].second;
}

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

void spin_briefly() {
  if (!says_how_to_wait(current_environment()))
    ::setenv(variable::gomp_spin_count, rank_env::brief_spin, 1);
}

Environment rank_environment(Environment base, const RankSpec& place) {
  set_rank(base, place);
  set_round(base, place);
  set_gpus(base, place);
  set_rendezvous(base, place);
  fill_gaps(base, place);
  return base;
}

Environment hot_spare_environment(Environment base, const RankSpec& place, int descriptor) {
  RankSpec nowhere = place;
  nowhere.gpus.clear();
  Environment environment = rank_environment(std::move(base), nowhere);
  std::erase_if(environment, [](const auto& entry) { return is_of_place(entry.first); });
  set(environment, variable::hot_spare_descriptor, std::to_string(descriptor));
  return environment;
}

Environment place_environment(const RankSpec& place) {
  Environment environment = rank_environment({}, place);
  std::erase_if(environment, [](const auto& entry) {
    return !is_of_place(entry.first) && entry.first != variable::visible_gpus;
  });
  return environment;
}

}  // namespace lockstep::launch
