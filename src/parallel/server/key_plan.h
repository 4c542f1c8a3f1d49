// Assigns the parameters to servers. Pure arithmetic: the same in all servers and workers with the
// same keys.
//
//   bytes    0         40        80        120       160
//            | a [5, 2] float | b [10] float | c [5, 2] |      two servers: the first one has a and
//            |        server 0        |     server 1    |      b[0..9], the second one b[9..10], c
//
// All bytes are divided equally between servers, and a row (a slice of dim 0) belongs to the server
// in whose part it begins: no row is split, so an update of one row is one message.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ps {

// A trained parameter.
struct Key {
  std::string name;
  int dtype = 0;  // LibTorch's number of the dtype
  std::int64_t element_bytes = 4;
  bool by_rows = false;
  std::vector<std::int64_t> sizes;

  [[nodiscard]] std::int64_t rows() const { return sizes.empty() ? 1 : sizes.front(); }
  [[nodiscard]] std::int64_t row_elements() const;
  [[nodiscard]] std::int64_t row_bytes() const { return row_elements() * element_bytes; }
  bool operator==(const Key&) const = default;
};

// Rows of a key; at least one.
struct Piece {
  int key = 0;
  layout::Range rows;
  bool operator==(const Piece&) const = default;
};

// Returns each server's pieces, in the order of the keys; every row occurs once. A key without
// elements has no piece.
[[nodiscard]] std::vector<std::vector<Piece>> plan_keys(std::span<const Key> keys, int servers);

// Converts keys to and from text, one "9 fc.weight 6 4 0 2 3 4 \n" per key: the length of the name,
// the name, dtype, bytes per element, by rows or not, dims, sizes. Throws BadInput if the text was
// not made by encode_keys().
[[nodiscard]] std::string encode_keys(std::span<const Key> keys);
[[nodiscard]] std::vector<Key> decode_keys(std::string_view text);

// The first difference between two lists, as "fc.weight [3, 4]" for each; "nothing more" if a list
// ends.
struct KeyDifference {
  std::string here, there;
};
[[nodiscard]] KeyDifference first_difference(std::span<const Key> here, std::span<const Key> there);

// Share: one server's part of the parameters, as bytes in one message. Worker and server compute
// the same layout from the same keys.
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
  struct BufferSlot {
    std::size_t number = 0;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    at::ScalarType dtype = at::kFloat;
    std::vector<std::int64_t> sizes;
  };
  std::vector<BufferSlot> places_;
  std::int64_t bytes_ = 0;
};

// Returns the sizes of a piece: its rows of the key.
[[nodiscard]] std::vector<std::int64_t> sizes_of(const Key& key, const Piece& piece);
// Returns the rows of a whole tensor that belong to a piece, as a view.
[[nodiscard]] at::Tensor rows_of(const at::Tensor& tensor, const Piece& piece);

}  // namespace lockstep::ps
