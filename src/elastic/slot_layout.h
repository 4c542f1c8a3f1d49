// SlotLayout: where the gradients of a slot lie in one flat tensor, of which each rank adds up a
// chunk. Behind gradients there is one element a parameter that counts the slots which gave one.
// Pure.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

struct SlotPiece {
  std::size_t parameter = 0;
  layout::Range elements;  // of the parameter, in the order of its memory
  std::int64_t at = 0;     // in the flat tensor
};

class SlotLayout {
 public:
  // Every rank needs all sums: chunks are equally long. `elements`: of each parameter.
  [[nodiscard]] static SlotLayout whole(const std::vector<std::int64_t>& elements, int ranks);
  // Rank r needs elements parts[r][i] of parameter i: its chunk has these.
  [[nodiscard]] static SlotLayout divided(const std::vector<std::vector<layout::Range>>& parts);

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] const std::vector<SlotPiece>& pieces() const { return pieces_; }
  // Where the counts of all parameters begin: once, or once in each chunk.
  [[nodiscard]] const std::vector<std::int64_t>& counts() const { return counts_; }
  [[nodiscard]] layout::Range chunk(int rank) const {
    return chunks_[static_cast<std::size_t>(rank)];
  }
  // What of it is gradients.
  [[nodiscard]] layout::Range gradients(int rank) const;

 private:
  std::vector<SlotPiece> pieces_;
  std::vector<layout::Range> chunks_;
  std::vector<std::int64_t> counts_;
  std::int64_t length_ = 0;
};

}  // namespace lockstep
