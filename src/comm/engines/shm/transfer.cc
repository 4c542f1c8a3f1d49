#include "comm/engines/shm/transfer.h"

#include "comm/engines/shm/private_memory.h"
#include "comm/kernels/combine.h"

#include <algorithm>

namespace lockstep::shm {
namespace {

constexpr std::size_t tile_bytes = 16 << 10;  // stays in the first cache from one copy to the next

int write(Place to, const std::byte* from, std::size_t bytes, bool stream) {
  if (!to.is_here()) return write_private(to, from, bytes);
  kernels::copy_bytes(to.data, from, bytes, stream);
  return 0;
}

}  // namespace

int copy(std::span<const Place> to, Place from, std::size_t bytes, bool stream, Scratch& scratch) {
  if (to.size() == 1 && from.is_here()) return write(to[0], from.data, bytes, stream);
  if (to.size() == 1 && to[0].is_here()) return read_private(to[0].data, from, bytes);
  bool here = from.is_here() && std::ranges::all_of(to, &Place::is_here);
  std::size_t block = here ? tile_bytes : Scratch::bytes;
  for (std::size_t offset = 0; offset < bytes; offset += block) {
    std::size_t length = std::min(block, bytes - offset);
    const std::byte* source = from.data + offset;
    if (!from.is_here()) {
      source = scratch.data();
      if (int error = read_private(scratch.data(), from.plus(offset), length)) return error;
    }
    for (Place each : to) {
      if (int error = write(each.plus(offset), source, length, stream)) return error;
    }
  }
  return 0;
}

}  // namespace lockstep::shm
