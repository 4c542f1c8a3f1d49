#include "comm/engines/shm/transfer.h"

#include "comm/engines/shm/private_memory.h"

#include <algorithm>
#include <array>

namespace lockstep::shm {
namespace {

constexpr std::size_t tile_bytes = 16 << 10;  // stays in the first cache from one copy to the next

bool all_here(std::span<const Place> places) {
  return std::all_of(places.begin(), places.end(), [](Place place) { return place.is_here(); });
}

int write(Place to, const std::byte* from, std::size_t bytes, bool stream) {
  if (!to.is_here()) return write_private(to, from, bytes);
  kernels::copy_bytes(to.data, from, bytes, stream);
  return 0;
}

std::byte* data_of(Place place) { return place.data; }

int combine_here(const PlacedCombination& r) {
  std::array<const std::byte*, kernels::max_ranks> inputs;
  std::array<std::byte*, kernels::max_ranks> outputs;
  std::transform(r.inputs.begin(), r.inputs.end(), inputs.begin(), data_of);
  std::transform(r.outputs.begin(), r.outputs.end(), outputs.begin(), data_of);
  kernels::combine({r.dtype, r.op, std::span(inputs.data(), r.inputs.size()),
                    std::span(outputs.data(), r.outputs.size()), r.elements, r.stream});
  return 0;
}

// One block, `offset` bytes into the places. The result is stored to all outputs here, and copied
// from the first of them (or from the scratch) to those elsewhere.
int combine_block(const PlacedCombination& r, std::size_t offset, std::size_t bytes,
                  Scratch& scratch) {
  std::array<const std::byte*, kernels::max_ranks> inputs;
  std::array<std::byte*, kernels::max_ranks> outputs;
  for (std::size_t i = 0; i < r.inputs.size(); ++i) {
    Place from = r.inputs[i].plus(offset);
    inputs[i] = from.data;
    if (from.is_here()) continue;
    inputs[i] = scratch.block(i);
    if (int error = read_private(scratch.block(i), from, bytes)) return error;
  }
  std::size_t stored = 0;
  for (Place to : r.outputs) {
    if (to.is_here()) outputs[stored++] = to.data + offset;
  }
  if (stored == 0) outputs[stored++] = scratch.block(r.inputs.size());
  auto elements = static_cast<std::int64_t>(bytes / bytes_of(r.dtype));
  kernels::combine({r.dtype, r.op, std::span(inputs.data(), r.inputs.size()),
                    std::span(outputs.data(), stored), elements, false});
  for (Place to : r.outputs) {
    if (to.is_here()) continue;
    if (int error = write_private(to.plus(offset), outputs[0], bytes)) return error;
  }
  return 0;
}

}  // namespace

std::size_t Scratch::divide(std::size_t count) {
  constexpr std::size_t line = 64;
  constexpr std::size_t page = 4096;
  if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::size_t grain = bytes / count >= page ? page : line;
  block_bytes_ = bytes / count / grain * grain;
  return block_bytes_;
}

int copy(std::span<const Place> to, Place from, std::size_t bytes, bool stream, Scratch& scratch) {
  if (to.size() == 1 && from.is_here()) return write(to[0], from.data, bytes, stream);
  if (to.size() == 1 && to[0].is_here()) return read_private(to[0].data, from, bytes);
  bool here = from.is_here() && all_here(to);
  std::size_t block = here ? tile_bytes : scratch.divide(1);
  for (std::size_t offset = 0; offset < bytes; offset += block) {
    std::size_t length = std::min(block, bytes - offset);
    const std::byte* source = from.data + offset;
    if (!from.is_here()) {
      source = scratch.block(0);
      if (int error = read_private(scratch.block(0), from.plus(offset), length)) return error;
    }
    for (Place each : to) {
      if (int error = write(each.plus(offset), source, length, stream)) return error;
    }
  }
  return 0;
}

int combine(const PlacedCombination& combination, Scratch& scratch) {
  if (combination.outputs.empty()) return 0;
  if (all_here(combination.inputs) && all_here(combination.outputs))
    return combine_here(combination);
  std::size_t block = scratch.divide(combination.inputs.size() + 1);
  auto bytes = static_cast<std::size_t>(combination.elements) * bytes_of(combination.dtype);
  for (std::size_t offset = 0; offset < bytes; offset += block) {
    if (int error = combine_block(combination, offset, std::min(block, bytes - offset), scratch))
      return error;
  }
  return 0;
}

}  // namespace lockstep::shm
