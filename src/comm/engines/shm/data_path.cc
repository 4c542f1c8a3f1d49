#include "comm/engines/shm/data_path.h"

#include "comm/engines/shm/plan.h"

namespace lockstep::shm {
namespace {

std::int64_t count_of(const Posting& posting, int members) {
  auto input = [&] { return elements_in(posting.input.bytes, posting.dtype); };
  auto output = [&] { return elements_in(posting.output.bytes, posting.dtype); };
  bool uneven = posting.is_uneven();
  switch (posting.collective) {
    case Collective::barrier:
      return 0;
    case Collective::all_gather:
      return uneven ? output() : input();
    case Collective::reduce_scatter:
      return uneven ? input() : output();
    case Collective::all_to_all:
      return uneven ? 0 : input() / members;
    case Collective::scatter:
    case Collective::recv:
      return output();
    default:
      return input();
  }
}

// Whether a call of so many elements is small enough to be carried.
bool fits_slot(const Posting& posting, std::int64_t count, int members, std::size_t carried_bytes) {
  if (posting.is_uneven() || posting.collective == Collective::barrier) return false;
  auto bytes = static_cast<std::size_t>(count) * bytes_of(posting.dtype);
  return bytes * (gives_each_its_part(posting.collective) ? members : 1) <= carried_bytes;
}

// Nowhere for a buffer that must be staged.
Location find(const Peers& peers, Buffer buffer) {
  return buffer.bytes == 0 ? Location() : peers.locate(buffer.data, buffer.bytes);
}

}  // namespace

DataPath choose_path(const Peers& peers, const Posting& posting, int members, int me,
                     std::size_t carried_bytes) {
  DataPath path{.count = count_of(posting, members),
                .reads = reads_input(posting.collective, me, posting.root),
                .writes = writes_output(posting.collective, me, posting.root)};
  if (fits_slot(posting, path.count, members, carried_bytes)) {
    path.is_carried = true;
    path.keeps_own_part = path.reads && (posting.collective == Collective::all_to_all ||
                                         posting.collective == Collective::scatter);
    if (path.reads && !combines(posting.collective))
      path.input = peers.locate(posting.input.data, posting.input.bytes);
  } else {
    if (path.reads) path.input = find(peers, posting.input);
    bool in_place = path.reads && posting.input.data == posting.output.data &&
                    posting.input.bytes == posting.output.bytes;
    if (path.writes) path.output = in_place ? path.input : find(peers, posting.output);
  }
  return path;
}

}  // namespace lockstep::shm
