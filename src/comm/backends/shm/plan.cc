#include "comm/backends/shm/plan.h"

#include <numeric>

namespace lockstep::shm {

bool reads_input(Collective collective, int rank, int root) {
  switch (collective) {
    case Collective::barrier:
    case Collective::recv:
      return false;
    case Collective::broadcast:
    case Collective::scatter:
      return rank == root;
    default:
      return true;
  }
}

bool writes_output(Collective collective, int rank, int root) {
  switch (collective) {
    case Collective::barrier:
    case Collective::send:
      return false;
    case Collective::broadcast:
      return rank != root;
    case Collective::reduce:
    case Collective::gather:
      return rank == root;
    default:
      return true;
  }
}

namespace {

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

// Returns true for operations whose elements have the same offset in every buffer, so that any rank
// can process any share of them.
bool is_shared_out(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::send:
    case Collective::recv:
      return true;
    default:
      return false;
  }
}

}  // namespace

Plan::Plan(const Shape& shape, const Cutting& cutting) : shape_(shape), grain_(cutting.grain) {
  constexpr std::int64_t segments_a_part = 4;
  std::int64_t elements = 0;
  for (int part = 0; part < parts(); ++part) elements += part_length(part);
  single_ = elements > 0 && elements <= cutting.whole;
  std::int64_t wanted = std::clamp(divide_up(elements, parts() * segments_a_part),
                                   cutting.least_segment, cutting.most_segment);
  wanted = std::max(wanted, divide_up(elements, max_segments - parts()));
  segment_ = divide_up(wanted, grain_) * grain_;
  for (int part = 0; part < parts(); ++part) total_ += segments(part);
}

std::int64_t Plan::share_begin(int part) const {
  std::int64_t share = divide_up(divide_up(shape_.count, shape_.size), grain_) * grain_;
  return std::min(shape_.count, share * part);
}

std::int64_t Plan::piece(int source, int destination) const {
  return shape_.exchange ? shape_.exchange->piece(source, destination) : shape_.count;
}

std::int64_t Plan::piece_begin(int source, int destination) const {
  return shape_.exchange ? shape_.exchange->before(source, destination)
                         : shape_.count * destination;
}

std::int64_t Plan::part_length(int part) const {
  if (shape_.collective == Collective::barrier) return 0;
  if (is_shared_out(shape_.collective)) return share_begin(part + 1) - share_begin(part);
  if (shape_.collective == Collective::all_to_all)
    return shape_.exchange ? shape_.exchange->received(part) : shape_.count * shape_.size;
  return shape_.counts.empty() ? shape_.count : shape_.counts[part];
}

std::int64_t Plan::displacement(int part) const {
  if (shape_.counts.empty()) return shape_.count * part;
  return std::accumulate(shape_.counts.begin(), shape_.counts.begin() + part, std::int64_t{0});
}

std::int64_t Plan::segments(int part) const {
  if (single_) return part == 0 ? 1 : 0;
  return divide_up(part_length(part), segment_);
}

Range Plan::segment(int part, std::int64_t index) const {
  std::int64_t length = part_length(part);
  if (single_) return {0, length};
  return {std::min(length, index * segment_), std::min(length, (index + 1) * segment_)};
}

std::int64_t Plan::combine_input_offset(int part) const {
  return shape_.collective == Collective::reduce_scatter ? displacement(part) : share_begin(part);
}

std::int64_t Plan::combine_output_offset(int part) const {
  return shape_.collective == Collective::reduce_scatter ? 0 : share_begin(part);
}

Move Plan::single_move(int part, Range range) const {
  std::int64_t length = range.length();
  switch (shape_.collective) {
    case Collective::broadcast: {
      std::int64_t offset = share_begin(part) + range.begin;
      return {shape_.root, offset, Move::everyone, offset, length};
    }
    case Collective::send:
    case Collective::recv: {
      std::int64_t offset = share_begin(part) + range.begin;
      return {0, offset, 1, offset, length};
    }
    case Collective::scatter:
      return {shape_.root, displacement(part) + range.begin, part, range.begin, length};
    case Collective::gather:
      return {part, range.begin, shape_.root, displacement(part) + range.begin, length};
    default:
      return {part, range.begin, Move::everyone, displacement(part) + range.begin, length};
  }
}

}  // namespace lockstep::shm
