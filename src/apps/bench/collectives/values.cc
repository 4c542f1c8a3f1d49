#include "apps/bench/collectives/values.h"

namespace lockstep::apps {
namespace {

// A prime, so that parts and segments begin at different values and a shifted result is detected.
constexpr std::int64_t period = 4093;
constexpr std::int64_t rank_step = 4096;

// Returns the sum of all ranks' inputs at one position.
float sum_of_inputs(int ranks, std::int64_t position) {
  std::int64_t numbers = static_cast<std::int64_t>(ranks) * (ranks - 1) / 2;
  return static_cast<float>(ranks * (position % period) + rank_step * numbers);
}

}  // namespace

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
