#include "comm/backends/mpi/plan.h"

#include <algorithm>
#include <span>
#include <utility>

namespace lockstep::mpi {
namespace {

// The parts of a tensor, one per rank, in bytes.
class Parts {
 public:
  static Parts even_parts(std::int64_t elements, int size, std::int64_t element_bytes) {
    Parts parts;
    for (int rank = 0; rank <= size; ++rank) {
      // The first parts take one element more; a product of the two could overflow.
      auto begin = elements / size * rank + std::min<std::int64_t>(rank, elements % size);
      parts.begins_.push_back(begin * element_bytes);
    }
    return parts;
  }
  static Parts of(std::span<const std::int64_t> counts, std::int64_t part_elements, int size,
                  std::int64_t element_bytes) {
    Parts parts;
    parts.begins_.push_back(0);
    for (int rank = 0; rank < size; ++rank) {
      auto count = counts.empty() ? part_elements : counts[rank];
      parts.begins_.push_back(parts.begins_.back() + count * element_bytes);
    }
    return parts;
  }
  [[nodiscard]] Piece piece(Memory memory, int rank) const {
    return {memory, begins_[rank], bytes(rank)};
  }
  [[nodiscard]] std::int64_t bytes(int rank) const { return begins_[rank + 1] - begins_[rank]; }
  [[nodiscard]] std::int64_t all() const { return begins_.back(); }

 private:
  std::vector<std::int64_t> begins_;
};

class Planner {
 public:
  Planner(const CallRecord& call, int rank, int size, bool in_own_part)
      : call_(call),
        rank_(rank),
        size_(size),
        in_own_part_(in_own_part),
        element_bytes_(call.dtype ? static_cast<std::int64_t>(bytes_of(*call.dtype)) : 1),
        chunks_(Parts::even_parts(call_.elements, size_, element_bytes_)),
        whole_{Memory::input, 0, call_.elements * element_bytes_} {}

  MoveSchedule plan() {
    plan_rounds();
    if (size_ > 1 && !is_message(call_.collective)) hear_of_previous();
    return std::move(plan_);
  }

 private:
  void plan_rounds() {
    switch (call_.collective) {
      case Collective::barrier:
        return barrier();
      case Collective::all_reduce:
        return all_reduce();
      case Collective::reduce:
        return reduce();
      case Collective::broadcast:
        return broadcast();
      case Collective::all_gather:
        return all_gather();
      case Collective::reduce_scatter:
        return reduce_scatter();
      case Collective::all_to_all:
        return all_to_all();
      case Collective::gather:
        return gather();
      case Collective::scatter:
        return scatter();
      case Collective::send:
        return send();
      case Collective::recv:
        return receive();
    }
  }

  // D. Hensgen, R. Finkel, U. Manber, Two algorithms for barrier synchronization, 1988: after k
  // rounds a rank knows that the 2^k - 1 ranks before it have arrived.
  void barrier() {
    for (int distance = 1; distance < size_; distance *= 2) {
      auto& round = this->round();
      round.sends.push_back({(rank_ + distance) % size_, {}});
      round.receives.push_back({(rank_ + size_ - distance) % size_, {}});
    }
  }

  void all_reduce() {
    auto& first = round();
    if (whole_.bytes <= whole_bytes) {
      for (int peer : others()) add(first.sends, peer, whole_);
      return collect(first, whole_, {Memory::output, 0, whole_.bytes});
    }
    for (int peer : others()) add(first.sends, peer, chunks_.piece(Memory::input, peer));
    collect(first, chunks_.piece(Memory::input, rank_), chunks_.piece(Memory::output, rank_));
    share(chunks_, Memory::output);
  }

  void reduce() {
    bool is_root = rank_ == call_.root;
    auto& first = round();
    if (whole_.bytes <= whole_bytes) {
      if (is_root) return collect(first, whole_, {Memory::output, 0, whole_.bytes});
      return add(first.sends, call_.root, whole_);
    }
    for (int peer : others()) add(first.sends, peer, chunks_.piece(Memory::input, peer));
    auto mine = chunks_.piece(Memory::input, rank_);
    auto sum = chunks_.piece(Memory::output, rank_);
    if (!is_root) {
      sum = {Memory::scratch, plan_.scratch_bytes, mine.bytes};
      plan_.scratch_bytes += mine.bytes;
    }
    collect(first, mine, sum);
    auto& second = round();
    if (!is_root) return add(second.sends, call_.root, sum);
    for (int peer : others()) add(second.receives, peer, chunks_.piece(Memory::output, peer));
  }

  void broadcast() {
    bool is_root = rank_ == call_.root;
    auto& first = round();
    Piece whole{Memory::output, 0, whole_.bytes};
    if (whole.bytes <= whole_bytes || size_ <= 2) {
      if (!is_root) return add(first.receives, call_.root, whole);
      for (int peer : others()) add(first.sends, peer, whole);
      return;
    }
    // The root sends each other rank a chunk, and each of these ranks passes its chunk on. The root
    // needs no chunk, so the tensor is cut into size - 1 chunks.
    auto chunks = Parts::even_parts(call_.elements, size_ - 1, element_bytes_);
    auto place = [&](int rank) { return rank < call_.root ? rank : rank - 1; };
    auto piece = [&](int rank) { return chunks.piece(Memory::output, place(rank)); };
    if (is_root) {
      for (int peer : others()) add(first.sends, peer, piece(peer));
      return;
    }
    add(first.receives, call_.root, piece(rank_));
    auto& second = round();
    for (int peer : others()) {
      if (peer == call_.root) continue;
      add(second.sends, peer, piece(rank_));
      add(second.receives, peer, piece(peer));
    }
  }

  void all_gather() {
    auto parts = Parts::of(call_.output_counts, call_.elements / size_, size_, element_bytes_);
    auto& first = round();
    Piece mine{Memory::input, 0, parts.bytes(rank_)};
    if (!in_own_part_) first.copies.push_back({mine, parts.piece(Memory::output, rank_)});
    for (int peer : others()) {
      add(first.sends, peer, mine);
      add(first.receives, peer, parts.piece(Memory::output, peer));
    }
  }

  void reduce_scatter() {
    auto parts = Parts::of(call_.input_counts, call_.elements / size_, size_, element_bytes_);
    auto& first = round();
    for (int peer : others()) add(first.sends, peer, parts.piece(Memory::input, peer));
    collect(first, parts.piece(Memory::input, rank_), {Memory::output, 0, parts.bytes(rank_)});
  }

  void all_to_all() {
    auto from = Parts::of(call_.input_counts, call_.elements / size_, size_, element_bytes_);
    auto to = Parts::of(call_.output_counts, call_.elements / size_, size_, element_bytes_);
    auto& first = round();
    first.copies.push_back({from.piece(Memory::input, rank_), to.piece(Memory::output, rank_)});
    bool uneven = !call_.input_counts.empty();
    for (int peer : others()) {
      auto out = from.piece(Memory::input, peer);
      auto in = to.piece(Memory::output, peer);
      // Uneven: the two ends have separate counts, and only a message shows whether they agree.
      if (uneven || out.bytes > 0) first.sends.push_back({peer, out});
      if (uneven || in.bytes > 0) first.receives.push_back({peer, in});
    }
  }

  void gather() {
    auto parts = Parts::of({}, call_.elements, size_, element_bytes_);
    Piece mine{Memory::input, 0, parts.bytes(rank_)};
    auto& first = round();
    if (rank_ != call_.root) return add(first.sends, call_.root, mine);
    if (!in_own_part_) first.copies.push_back({mine, parts.piece(Memory::output, rank_)});
    for (int peer : others()) add(first.receives, peer, parts.piece(Memory::output, peer));
  }

  void scatter() {
    auto parts = Parts::of({}, call_.elements, size_, element_bytes_);
    Piece mine{Memory::output, 0, parts.bytes(rank_)};
    auto& first = round();
    if (rank_ != call_.root) return add(first.receives, call_.root, mine);
    if (!in_own_part_) first.copies.push_back({parts.piece(Memory::input, rank_), mine});
    for (int peer : others()) add(first.sends, peer, parts.piece(Memory::input, peer));
  }

  // A send is complete when the receiver has confirmed the message.
  void send() {
    round().sends.push_back({call_.root, whole_});
    round().receives.push_back({call_.root, {}});
  }

  void receive() {
    round().receives.push_back({call_.root, {Memory::output, 0, whole_.bytes}});
    round().sends.push_back({call_.root, {}});
  }

  // Makes each rank receive a message from the previous rank, even an empty one, so that different
  // calls are detected whatever their own messages are. Otherwise two ranks that both broadcast as
  // root would both succeed.
  void hear_of_previous() {
    const int next = (rank_ + 1) % size_;
    const int previous = (rank_ + size_ - 1) % size_;
    bool tells = false;
    bool hears = false;
    for (const auto& round : plan_.rounds) {
      tells |= std::ranges::find(round.sends, next, &Transfer::peer) != round.sends.end();
      hears |= std::ranges::find(round.receives, previous, &Transfer::peer) != round.receives.end();
    }
    if (!tells) plan_.rounds.front().sends.push_back({next, {}});
    if (!hears) plan_.rounds.front().receives.push_back({previous, {}});
  }

  Round& round() { return plan_.rounds.emplace_back(); }
  // Returns the other ranks, beginning with the next rank, so that not all ranks send to the same
  // rank first.
  [[nodiscard]] std::vector<int> others() const {
    std::vector<int> ranks;
    for (int step = 1; step < size_; ++step) ranks.push_back((rank_ + step) % size_);
    return ranks;
  }
  // Adds no transfer for an empty piece: both ends know that it is empty.
  static void add(std::vector<Transfer>& transfers, int peer, Piece piece) {
    if (piece.bytes > 0) transfers.push_back({peer, piece});
  }
  // Receives a contribution of `bytes` from every other rank into scratch memory and sums them with
  // `mine`.
  void collect(Round& round, Piece mine, Piece to) {
    Sum sum{.from = {}, .to = to};
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) {
        sum.from.push_back(mine);
        continue;
      }
      Piece place{Memory::scratch, plan_.scratch_bytes, mine.bytes};
      plan_.scratch_bytes += mine.bytes;
      add(round.receives, rank, place);
      sum.from.push_back(place);
    }
    if (mine.bytes > 0) round.sum = std::move(sum);
  }

  // Every rank sends its part of `memory` to all other ranks.
  void share(const Parts& parts, Memory memory) {
    auto& round = this->round();
    for (int peer : others()) {
      add(round.sends, peer, parts.piece(memory, rank_));
      add(round.receives, peer, parts.piece(memory, peer));
    }
  }

  const CallRecord& call_;
  const int rank_;
  const int size_;
  const bool in_own_part_;
  const std::int64_t element_bytes_;
  Parts chunks_;
  Piece whole_;
  MoveSchedule plan_;
};

}  // namespace

MoveSchedule make_move_schedule(const CallRecord& call, int rank, int size, bool in_own_part) {
  return Planner(call, rank, size, in_own_part).plan();
}

}  // namespace lockstep::mpi
