// Which server keeps what of the parameters. Pure arithmetic: the same in all servers and workers
// that have the same keys.
//
//   bytes    0         40        80        120       160
//            | a [5, 2] float | b [10] float | c [5, 2] |      two servers: the first one has a and
//            |        server 0        |     server 1    |      b[0..9], the second one b[9..10], c
//
// A row (a slice of dim 0) belongs to the server in whose equal part of all bytes it begins: no row
// is divided, so an update of one row is one message.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ps {

// A trained parameter.
struct Key {
  std::string name;
  int dtype = 0;  // LibTorch's number of it
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

// For each server its pieces, in the order of the keys; every row once. A key without elements has
// no piece.
[[nodiscard]] std::vector<std::vector<Piece>> plan_keys(std::span<const Key> keys, int servers);

// For the wire, "9 fc.weight 6 4 0 2 3 4 \n" a key, and back: the name after its length, dtype,
// bytes of an element, whether by rows, dims, sizes. BadInput when the text was not made by this.
[[nodiscard]] std::string encode_keys(std::span<const Key> keys);
[[nodiscard]] std::vector<Key> decode_keys(std::string_view text);

// Where two lists differ first, as "fc.weight [3, 4]" of each; "nothing more" where one ends.
struct KeyDifference {
  std::string here, there;
};
[[nodiscard]] KeyDifference first_difference(std::span<const Key> here, std::span<const Key> there);

}  // namespace lockstep::ps
