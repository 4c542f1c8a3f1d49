#include "rank_env/slurm.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"

#include <limits>

namespace lockstep::rank_env {
namespace {

using environment::required_integer;

// Higher numbers are reserved by Slurm for batch scripts, interactive shells and bookkeeping.
constexpr std::int64_t most_steps = 0xfffffff0 - 1;
constexpr std::size_t most_hosts_bytes = 1 << 20;

struct Step {
  std::int64_t job = 0;
  std::int64_t step = 0;
};

std::optional<Step> read_step() {
  auto job = environment::integer("SLURM_JOB_ID", 0);
  auto step = environment::integer("SLURM_STEP_ID", 0);
  if (!job || !step || *step > most_steps) return std::nullopt;
  return Step{*job, *step};
}

RankRendezvous on_one_host(const Step& step) {
  return {.kind = RankRendezvous::Kind::served_store,
          .address = one_host_address(formatted("slurm-{}.{}", step.job, step.step)),
          .host = "127.0.0.1",
          .port = 0};
}

RankRendezvous on_several_hosts(const Step& step) {
  auto host = first_host(environment::required_text("SLURM_STEP_NODELIST"));
  auto reserved = first_port(environment::text("SLURM_STEP_RESV_PORTS").value_or(""));
  auto port = reserved.value_or(
      port_of_step(static_cast<std::uint64_t>(step.job), static_cast<std::uint64_t>(step.step)));
  return {.kind = RankRendezvous::Kind::served_store,
          .address = formatted("tcp://{}:{}", host, port),
          .host = host,
          .port = port};
}

}  // namespace

std::optional<RankInfo> detect_slurm() {
  auto step = read_step();
  if (!step) return std::nullopt;
  constexpr auto why = "but SLURM_STEP_ID is";
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  auto size = required_integer("SLURM_STEP_NUM_TASKS", 1, most, why);
  auto rank = required_integer("SLURM_PROCID", 0, size - 1, why);
  auto hosts = required_integer("SLURM_STEP_NUM_NODES", 1, size, why);
  RankInfo info{.rank = static_cast<int>(rank),
                .size = static_cast<int>(size),
                .attempt = formatted("slurm-{}.{}/{}", step->job, step->step,
                                     environment::integer("SLURM_RESTART_COUNT", 0).value_or(0)),
                .rendezvous = {}};
  if (size > 1) info.rendezvous = hosts == 1 ? on_one_host(*step) : on_several_hosts(*step);
  return info;
}

std::string first_host(std::string_view hosts) {
  check_input(hosts.size() <= most_hosts_bytes,
              "SLURM_STEP_NODELIST: expected at most {}, found {}", format_bytes(most_hosts_bytes),
              format_bytes(static_cast<std::int64_t>(hosts.size())));
  std::string host;
  bool in_brackets = false, first_number_read = false;
  for (char letter : hosts) {
    if (letter == ',' && !in_brackets) break;
    if (letter == '[' && !in_brackets) {
      in_brackets = true;
      first_number_read = false;
    } else if (letter == ']' && in_brackets) {
      in_brackets = false;
    } else if (in_brackets && (letter == '-' || letter == ',')) {
      first_number_read = true;
    } else if (!in_brackets || !first_number_read) {
      host += letter;
    }
  }
  check_input(!host.empty() && !in_brackets && host.find_first_of("[] ") == std::string::npos,
              "SLURM_STEP_NODELIST: expected a list such as node[01-04], found '{}'",
              hosts.substr(0, 100));
  return host;
}

std::optional<std::uint16_t> first_port(std::string_view ports) {
  auto port = parse_integer(ports.substr(0, ports.find_first_of("-,")));
  if (!port || *port < 1 || *port > 65535) return std::nullopt;
  return static_cast<std::uint16_t>(*port);
}

std::uint16_t port_of_step(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t first = 15'000, count = 15'000;
  return static_cast<std::uint16_t>(first + fingerprint_of(job, step) % count);
}

}  // namespace lockstep::rank_env
