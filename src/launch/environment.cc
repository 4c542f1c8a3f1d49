#include "launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace lockstep::launch {

namespace {

void set_rank(Environment& environment, const RankSpec& place) {
  environment[variable::rank] = environment[variable::role_rank] = std::to_string(place.rank);
  environment[variable::world_size] = environment[variable::role_world_size] =
      std::to_string(place.ranks);
  environment[variable::local_rank] = std::to_string(place.local_rank);
  environment[variable::local_world_size] = std::to_string(place.local_ranks);
  environment[variable::group_rank] = std::to_string(place.node);
  environment[variable::group_world_size] = std::to_string(place.nodes);
  environment[variable::role_name] = "default";
  environment[variable::run_id] = place.run_id;
  environment[variable::restart_count] = std::to_string(place.restart);
  environment[variable::max_restarts] = std::to_string(place.max_restarts);
  environment[variable::agent] = std::to_string(place.agent);
}

void set_rendezvous(Environment& environment, const RankSpec& place) {
  environment[variable::master_address] = place.master_address;
  environment[variable::master_port] = std::to_string(place.master_port);
  for (const char* name :
       {"TORCHELASTIC_USE_AGENT_STORE", variable::store, variable::secret_descriptor,
        variable::agent_descriptor, variable::hot_spare_descriptor, variable::round,
        variable::worker, variable::error_file})
    environment.erase(name);
  if (place.round >= 0) environment[variable::round] = std::to_string(place.round);
  if (!place.worker.empty()) environment[variable::worker] = place.worker;
  if (!place.error_file.empty()) environment[variable::error_file] = place.error_file;
  if (place.agent_descriptor >= 0)
    environment[variable::agent_descriptor] = std::to_string(place.agent_descriptor);
  if (place.store.empty()) return;
  environment[variable::store] = place.store;
  environment[variable::secret_descriptor] = std::to_string(place.secret_descriptor);
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
  environment.try_emplace(variable::omp_threads,
                          std::to_string(std::max(1, place.cores / place.local_ranks)));
  if (!says_how_to_wait(environment)) {
    const bool is_crowded = place.local_ranks > place.cores;
    if (is_crowded) environment[variable::omp_wait_policy] = "passive";
    environment[variable::gomp_spin_count] = is_crowded ? "0" : rank_env::brief_spin;
  }
  environment.try_emplace(variable::python_unbuffered, "1");
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
  const auto found = environment.find(name);
  return found == environment.end() ? std::string_view() : found->second;
}

Environment current_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

void spin_briefly() {
  if (!says_how_to_wait(current_environment()))
    ::setenv(variable::gomp_spin_count, rank_env::brief_spin, 1);
}

Environment rank_environment(Environment base, const RankSpec& place) {
  set_rank(base, place);
  set_rendezvous(base, place);
  if (!place.gpus.empty()) base[variable::visible_gpus] = place.gpus;
  if (place.shares_gpus) base[variable::share_gpus] = "1";
  fill_gaps(base, place);
  return base;
}

Environment hot_spare_environment(Environment base, const RankSpec& place, int descriptor) {
  RankSpec nowhere = place;
  nowhere.gpus.clear();
  Environment environment = rank_environment(std::move(base), nowhere);
  std::erase_if(environment, [](const auto& entry) { return is_of_place(entry.first); });
  environment[variable::hot_spare_descriptor] = std::to_string(descriptor);
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
