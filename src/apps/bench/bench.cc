// lockstep-bench: `lockstep bench collectives` measures the operations of a group on this host.
#include "apps/bench/collectives/collectives.h"
#include "apps/bench/commands.h"
#include "comm/init/backends.h"

#include <lockstep/comm/device.h>

#include <ATen/Parallel.h>

namespace lockstep::apps {
namespace {

constexpr const char* program_name = "lockstep bench";

void add_bytes(CommandOptions& options, const char* name, const char* help, std::int64_t& target) {
  options.add({name, "BYTES", help, format_bytes(target)}, [&target](const std::string& text) {
    auto bytes = parse_bytes(text);
    if (!bytes || *bytes <= 0)
      throw BadInput(formatted("expected bytes such as 1KiB, 64MiB or 4096, found '{}'", text));
    target = *bytes;
  });
}

void declare(CommandOptions& options, CollectivesOptions& chosen) {
  options.add({"op", "WORDS", join(Words(collective_names().begin(), collective_names().end())),
               join(chosen.ops, ",")},
              words_into(chosen.ops, collective_names()));
  add_bytes(options, "from", "smallest size of a rank's larger tensor", chosen.from);
  add_bytes(options, "to", "largest size", chosen.to);
  add_number(options, "factor", "ratio of one size to the one before", chosen.factor, 2, 1 << 20);
  static const auto names = backend_names();
  options.add({"backend", "WORDS", "backends, in turn", "the one that init() chooses"},
              words_into(chosen.backends, names));
  options.add({"memory", "WORDS", join(Words(memory_names().begin(), memory_names().end())),
               "what the backend and the device have"},
              words_into(chosen.memories, memory_names()));
  options.add({"device", "DEVICE", "where tensors are: cpu, cuda (a GPU per rank) or cuda:N",
               "a GPU if the rank sees one"},
              text_into(chosen.device));
  add_ranks(options, chosen.ranks);
  add_number(options, "rounds", "turns per row", chosen.rounds, 1, most_turns);
  options.add({"turn", "SECONDS", "intended duration of a turn", formatted("{}", chosen.turn)},
              [&chosen](const std::string& text) {
                auto seconds = parse_number(text);
                if (!seconds || *seconds < 1e-4 || *seconds > 60)
                  throw BadInput(formatted("expected 0.0001 to 60 seconds, found '{}'", text));
                chosen.turn = *seconds;
              });
  add_output(options, chosen.json);
}

int act(const Words& words, const CollectivesOptions& chosen) {
  check_options(chosen);
  return on_ranks(
      program_name, "collectives", words, chosen,
      [&](const Group& world) {
        at::set_num_threads(1);
        measure_collectives(chosen, world, device());
      },
      chosen.device);
}

}  // namespace
}  // namespace lockstep::apps

int main(int count, char** words) {
  using namespace lockstep::apps;
  return lockstep::sys::run_program(program_name, [&] {
    return run_measurement(
        program_name, "Measures what this host does with Lockstep.",
        {command<CollectivesOptions>(
            program_name, "collectives",
            "Time and bandwidth of a group's operations, as in nccl-tests.", declare, act)},
        {words + 1, words + count});
  });
}
