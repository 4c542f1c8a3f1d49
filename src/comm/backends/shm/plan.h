// Plans: which elements of which rank's buffers each segment of an operation reads and writes. Pure
// arithmetic on element numbers; no memory is touched here.
//
// An operation is cut into parts, one per rank (the part that the rank executes first). A part is
// cut into segments; a segment is the unit that a thread claims. Segments write disjoint elements,
// and together write every element of every output once. A segment may read elements that another
// segment writes only if it copies them in place.
//
//   all_reduce, reduce   part r is the r-th share of the elements: combine all inputs there and
//                        store to all (to the root)
//   reduce_scatter       part r is rank r's output: combine the inputs' r-th pieces
//   broadcast            part r is the r-th share: copy from the root to all other ranks
//   all_gather, gather   part r is rank r's input: copy it to its place in every (root's) output
//   scatter              part r is rank r's output: copy its piece of the root's input
//   all_to_all           part r is rank r's output: copy each rank's piece for r
//   send, recv           two ranks; part r is the r-th half of the message, from rank 0's input to
//                        rank 1's output
//   barrier              no segments
#pragma once

#include <lockstep/comm/call.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::shm {

// AllToAllCounts: the number of elements that each rank sends to each rank in an uneven all_to_all,
// with precomputed sums.
class AllToAllCounts {
 public:
  AllToAllCounts() = default;
  // matrix[i * size + j] elements go from rank i to rank j.
  AllToAllCounts(int size, std::span<const std::int64_t> matrix)
      : size_(static_cast<std::size_t>(size)), received_(size_) {
    before_.reserve(size_ * (size_ + 1));
    for (std::size_t source = 0; source < size_; ++source) {
      std::int64_t sum = 0;
      for (std::size_t destination = 0; destination < size_; ++destination) {
        std::int64_t count = matrix[source * size_ + destination];
        before_.push_back(sum);
        sum += count;
        received_[destination] += count;
      }
      before_.push_back(sum);
    }
  }

  [[nodiscard]] std::int64_t piece(int source, int destination) const {
    return before(source, destination + 1) - before(source, destination);
  }
  // The number of elements that `source` sends to ranks below `destination`.
  [[nodiscard]] std::int64_t before(int source, int destination) const {
    return before_[static_cast<std::size_t>(source) * (size_ + 1) +
                   static_cast<std::size_t>(destination)];
  }
  [[nodiscard]] std::int64_t received(int destination) const {
    return received_[static_cast<std::size_t>(destination)];
  }

 private:
  std::size_t size_ = 0;
  std::vector<std::int64_t> before_;
  std::vector<std::int64_t> received_;
};

// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t length() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The arguments of an operation that determine its plan; equal on all ranks.
struct Shape {
  Collective collective = Collective::barrier;
  int size = 1;
  int root = 0;
  // Number of elements: of the tensor (all_reduce, reduce, broadcast, send, recv), of all pieces
  // together (uneven all_gather and reduce_scatter), or of one rank's piece (other even
  // operations). Not used by an uneven all_to_all.
  std::int64_t count = 0;
  std::span<const std::int64_t> counts = {};  // uneven all_gather, reduce_scatter
  const AllToAllCounts* exchange = nullptr;   // uneven all_to_all
};

// One copy of `length` elements. `destination` -1 stands for the outputs of all ranks.
struct Move {
  static constexpr int everyone = -1;
  int source = 0;
  std::int64_t source_offset = 0;
  int destination = 0;
  std::int64_t destination_offset = 0;
  std::int64_t length = 0;

  // The members [first(), end(size)) of a group of `size` are the destinations.
  [[nodiscard]] int first() const { return destination == everyone ? 0 : destination; }
  [[nodiscard]] int end(int size) const { return destination == everyone ? size : destination + 1; }
};

[[nodiscard]] bool reads_input(Collective collective, int rank, int root);
[[nodiscard]] bool writes_output(Collective collective, int rank, int root);

// Lengths in elements.
struct Cutting {
  std::int64_t grain = 1;          // shares and segments begin at multiples
  std::int64_t whole = 0;          // at most so many elements: one segment does all parts
  std::int64_t least_segment = 1;  // a part is cut into a few segments of such a length,
  std::int64_t most_segment = 1;   // so that late ranks find work left
};

class Plan {
 public:
  Plan() = default;
  Plan(const Shape& shape, const Cutting& cutting);
  // A plan for a thread that executes the whole operation; not cut into segments.
  explicit Plan(const Shape& shape) : shape_(shape) {}

  static constexpr std::int64_t max_segments = 60000;  // fits into a cursor word

  [[nodiscard]] int parts() const { return shape_.size; }
  [[nodiscard]] std::int64_t part_length(int part) const;
  [[nodiscard]] std::int64_t segments(int part) const;
  [[nodiscard]] std::int64_t total() const { return total_; }
  [[nodiscard]] bool is_single() const { return single_; }
  // Elements of segment `index` of `part`, counted from the beginning of the part.
  [[nodiscard]] Range segment(int part, std::int64_t index) const;

  // The offset at which a combining segment reads in every input, and at which it writes in the
  // outputs.
  [[nodiscard]] std::int64_t combine_input_offset(int part) const;
  [[nodiscard]] std::int64_t combine_output_offset(int part) const;

  // Calls visit(Move) for each copy of a moving segment.
  template <typename Visit>
  void moves(int part, Range range, Visit&& visit) const;

 private:
  [[nodiscard]] std::int64_t displacement(int part) const;  // elements of the earlier pieces
  [[nodiscard]] std::int64_t share_begin(int part) const;
  // For an all_to_all: the number of elements from `source` to `destination`, and where they begin
  // in the input.
  [[nodiscard]] std::int64_t piece(int source, int destination) const;
  [[nodiscard]] std::int64_t piece_begin(int source, int destination) const;
  // Returns the one copy of a segment, for moving operations other than all_to_all.
  [[nodiscard]] Move single_move(int part, Range range) const;

  Shape shape_;
  std::int64_t grain_ = 1;
  std::int64_t segment_ = 1;
  std::int64_t total_ = 0;
  bool single_ = false;
};

template <typename Visit>
void Plan::moves(int part, Range range, Visit&& visit) const {
  if (range.length() == 0) return;
  if (shape_.collective != Collective::all_to_all) {
    visit(single_move(part, range));
    return;
  }
  std::int64_t begin = 0;  // of the source's piece in this part's output
  for (int source = 0; source < shape_.size; ++source) {
    std::int64_t end = begin + piece(source, part);
    Range covered{std::max(begin, range.begin), std::min(end, range.end)};
    if (covered.length() > 0) {
      visit(Move{source, piece_begin(source, part) + covered.begin - begin, part, covered.begin,
                 covered.length()});
    }
    begin = end;
  }
}

}  // namespace lockstep::shm
