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
constexpr std::array<std::string_view, 4> memories{"arena", "ordinary", "node-shared", "device"};
constexpr std::int64_t element_bytes = sizeof(float);

// A prime, so that parts and segments begin at different values and a shifted result is detected.
constexpr std::int64_t period = 4093;
constexpr std::int64_t rank_step = 4096;

// Returns the sum of all ranks' inputs at one position.
float sum_of_inputs(int ranks, std::int64_t position) {
  std::int64_t numbers = static_cast<std::int64_t>(ranks) * (ranks - 1) / 2;
  return static_cast<float>(ranks * (position % period) + rank_step * numbers);
}

}  // namespace

std::span<const std::string_view> memory_names() { return memories; }

std::string_view name_of(Memory memory) { return memories[static_cast<std::size_t>(memory)]; }

Memory memory_named(std::string_view name) {
  auto found = std::ranges::find(memories, name);
  if (found == memories.end()) throw BadInput(unknown_name("memory", name, memories));
  return static_cast<Memory>(found - memories.begin());
}

bool can_lie_in(Memory memory, Collective op) {
  if (op == Collective::barrier) return memory == Memory::ordinary || memory == Memory::device;
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

float input_value(int rank, std::int64_t position) {
  return static_cast<float>(position % period + rank_step * rank);
}

float output_value(const CheckedCall& call, std::int64_t position) {
  std::int64_t part = call.part();
  auto from = static_cast<int>(position / part);
  switch (call.op) {
    case Collective::all_reduce:
    case Collective::reduce:
      return sum_of_inputs(call.ranks, position);
    case Collective::reduce_scatter:
      return sum_of_inputs(call.ranks, call.rank * part + position);
    case Collective::all_gather:
    case Collective::gather:
      return input_value(from, position % part);
    case Collective::all_to_all:
      return input_value(from, call.rank * part + position % part);
    case Collective::scatter:
      return input_value(0, call.rank * part + position);
    default:
      return input_value(0, position);
  }
}

bool has_output(const CheckedCall& call) {
  bool only_at_root = call.op == Collective::reduce || call.op == Collective::gather;
  return call.op != Collective::barrier && (!only_at_root || call.rank == 0);
}

void fill_input(std::span<float> input, int rank) {
  std::int64_t position = 0;
  for (float& value : input) value = input_value(rank, position++);
}

std::optional<std::int64_t> first_wrong(const CheckedCall& call, std::span<const float> output) {
  std::int64_t position = 0;
  for (float value : output) {
    if (value != output_value(call, position)) return position;
    ++position;
  }
  return std::nullopt;
}

}  // namespace lockstep::apps
