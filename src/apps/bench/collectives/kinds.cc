#include "apps/bench/collectives/kinds.h"

#include "base/text.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <array>

namespace lockstep::apps {
namespace {

constexpr std::array measured{
    Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
    Collective::broadcast,  Collective::all_to_all, Collective::reduce,
    Collective::gather,     Collective::scatter,    Collective::barrier};
constexpr std::array<std::string_view, 3> memories{"arena", "ordinary", "node-shared"};
constexpr std::int64_t element_bytes = sizeof(float);

}  // namespace

std::span<const std::string_view> memory_names() { return memories; }

std::string_view name_of(Memory memory) { return memories[static_cast<std::size_t>(memory)]; }

Memory memory_named(std::string_view name) {
  auto found = std::ranges::find(memories, name);
  if (found == memories.end()) throw BadInput(unknown_name("memory", name, memories));
  return static_cast<Memory>(found - memories.begin());
}

bool can_lie_in(Memory memory, Collective op) {
  if (op == Collective::barrier) return memory == Memory::ordinary;
  return memory != Memory::node_shared || op == Collective::all_gather;
}

std::span<const std::string_view> collective_names() {
  static const auto names = [] {
    std::array<std::string_view, measured.size()> names;
    std::ranges::transform(measured, names.begin(),
                           [](Collective op) { return lockstep::name_of(op); });
    return names;
  }();
  return names;
}

Collective collective_named(std::string_view name) {
  auto names = collective_names();
  auto found = std::ranges::find(names, name);
  if (found == names.end()) throw BadInput(unknown_name("operation", name, names));
  return measured[static_cast<std::size_t>(found - names.begin())];
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

}  // namespace lockstep::apps
