// Share: one server's part of the parameters, as bytes in one message. Both ends arrange it by the
// same keys.
#pragma once

#include "parallel/server/key_plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ps {

class Share {
 public:
  // Selects the pieces: those that are pulled whole, or those whose rows are pulled separately.
  enum class Kind { all, whole, by_rows };
  Share(std::span<const Key> keys, std::span<const Piece> pieces, Kind kind);

  // The size of a message with all pieces; each begins at a multiple of 64.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] at::Tensor make_buffer() const;
  [[nodiscard]] std::size_t size() const { return places_.size(); }
  // Returns the index of piece i in the list that the constructor was given.
  [[nodiscard]] std::size_t number(std::size_t i) const { return places_[i].number; }
  // Returns piece i in a message: its dtype, its rows, row-major.
  [[nodiscard]] at::Tensor view(const at::Tensor& buffer, std::size_t i) const;

 private:
  struct Place {
    std::size_t number = 0;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    at::ScalarType dtype = at::kFloat;
    std::vector<std::int64_t> sizes;
  };
  std::vector<Place> places_;
  std::int64_t bytes_ = 0;
};

// Returns the sizes of a piece: its rows of the key.
[[nodiscard]] std::vector<std::int64_t> sizes_of(const Key& key, const Piece& piece);
// Returns the rows of a whole tensor that belong to a piece, as a view.
[[nodiscard]] at::Tensor rows_of(const at::Tensor& tensor, const Piece& piece);

}  // namespace lockstep::ps
