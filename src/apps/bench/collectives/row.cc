#include "apps/bench/collectives/row.h"

#include <lockstep/base/check.h>
#include <lockstep/base/format.h>
#include <lockstep/base/nearest.h>
#include <lockstep/base/text.h>

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

namespace lockstep::apps {
namespace {

constexpr std::array measured{
    Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
    Collective::broadcast,  Collective::all_to_all, Collective::reduce,
    Collective::gather,     Collective::scatter,    Collective::barrier};
constexpr std::int64_t element_bytes = sizeof(float);

}  // namespace

std::string_view name_of(Memory memory) {
  switch (memory) {
    case Memory::arena:
      return "arena";
    case Memory::ordinary:
      return "ordinary";
    case Memory::node_shared:
      return "node-shared";
  }
  return "";
}

Memory memory_named(std::string_view name) {
  for (Memory memory : {Memory::arena, Memory::ordinary, Memory::node_shared})
    if (name_of(memory) == name) return memory;
  throw BadInput(formatted("expected arena, ordinary or node-shared memory, found '{}'", name));
}

bool can_lie_in(Memory memory, Collective op) {
  if (op == Collective::barrier) return memory == Memory::ordinary;
  return memory != Memory::node_shared || op == Collective::all_gather;
}

Collective collective_named(std::string_view name) {
  std::array<std::string_view, measured.size()> names;
  std::ranges::transform(measured, names.begin(), [](Collective op) { return name_of(op); });
  auto found = std::ranges::find(names, name);
  if (found == names.end()) throw BadInput(unknown_name("operation", name, names));
  return measured[found - names.begin()];
}

std::string title_of(const Row& row) {
  std::string size = row.op == Collective::barrier ? "" : " " + format_bytes(row.bytes);
  return formatted("{}{}, {} ranks{}", name_of(row.op), size, row.ranks,
                   row.outsider ? ", beside a busy process" : "");
}

std::int64_t even_bytes(Collective op, std::int64_t bytes, int ranks) {
  if (op == Collective::barrier) return 0;
  std::int64_t part = element_bytes * ranks;
  return std::max(part, bytes / part * part);
}

bool is_rooted(Collective op) {
  return op == Collective::broadcast || op == Collective::reduce || op == Collective::gather ||
         op == Collective::scatter;
}

double bus_share(Collective op, int ranks) {
  double others = static_cast<double>(ranks - 1) / ranks;
  switch (op) {
    case Collective::all_reduce:
      return 2 * others;
    case Collective::broadcast:
    case Collective::reduce:
      return 1;
    default:
      return others;
  }
}

std::string line_of(const Turn& turn) {
  return formatted("{} {} {} {} {}", name_of(turn.op), turn.bytes, name_of(turn.memory),
                   turn.uncounted, turn.calls);
}

Turn turn_of(const std::string& line) {
  std::istringstream words(line);
  std::string op, memory, rest;
  Turn turn;
  words >> op >> turn.bytes >> memory >> turn.uncounted >> turn.calls;
  check_input(!words.fail() && !(words >> rest) && turn.bytes >= 0 && turn.uncounted >= 0 &&
                  turn.calls >= 0,
              "expected a line such as 'all_reduce 1024 arena 2 20', found '{}'", line);
  turn.op = collective_named(op);
  turn.memory = memory_named(memory);
  return turn;
}

}  // namespace lockstep::apps
