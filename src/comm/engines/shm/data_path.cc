#include "comm/engines/shm/data_path.h"

#include "comm/engines/shm/staging.h"

namespace lockstep::shm {

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

bool fits_slot(const Posting& posting, std::int64_t count, int members, std::size_t carried_bytes) {
  if (posting.is_uneven() || posting.collective == Collective::barrier) return false;
  bool one_a_rank = posting.collective == Collective::reduce_scatter ||
                    posting.collective == Collective::all_to_all ||
                    posting.collective == Collective::scatter;
  auto bytes = static_cast<std::size_t>(count) * bytes_of(posting.dtype);
  return bytes * (one_a_rank ? members : 1) <= carried_bytes;
}

bool wants_pipeline(const Peers& peers, const Posting& posting) {
  return posting.collective == Collective::all_reduce &&
         posting.input.data == posting.output.data && is_for_pipeline(peers, posting.input);
}

bool copies_input(const Peers& peers, int members, std::size_t carried_bytes,
                  const Posting& posting) {
  return fits_slot(posting, count_of(posting, members), members, carried_bytes) ||
         is_staged(peers, posting.input) || wants_pipeline(peers, posting);
}

}  // namespace lockstep::shm
