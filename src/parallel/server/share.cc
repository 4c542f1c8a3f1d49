#include "parallel/server/share.h"

#include <lockstep/layout/tensor_slice.h>

#include <ATen/ops/empty.h>

#include <utility>

namespace lockstep::ps {

std::vector<std::int64_t> sizes_of(const Key& key, const Piece& piece) {
  std::vector<std::int64_t> sizes = key.sizes;
  if (!sizes.empty()) sizes.front() = piece.rows.length();
  return sizes;
}

at::Tensor rows_of(const at::Tensor& tensor, const Piece& piece) {
  return tensor.dim() == 0 ? tensor : tensor.narrow(0, piece.rows.begin, piece.rows.length());
}

Share::Share(std::span<const Key> keys, std::span<const Piece> pieces, Kind kind) {
  for (std::size_t number = 0; number < pieces.size(); ++number) {
    const Piece& piece = pieces[number];
    const Key& key = keys[static_cast<std::size_t>(piece.key)];
    if (kind != Kind::all && key.by_rows != (kind == Kind::by_rows)) continue;
    Place place{number, bytes_, piece.rows.length() * key.row_bytes(),
                static_cast<at::ScalarType>(key.dtype), sizes_of(key, piece)};
    bytes_ = layout::round_up(bytes_ + place.bytes, 64);
    places_.push_back(std::move(place));
  }
}

at::Tensor Share::make_buffer() const { return at::empty({bytes_}, at::kByte); }

at::Tensor Share::view(const at::Tensor& buffer, std::size_t i) const {
  const Place& place = places_[i];
  return buffer.narrow(0, place.offset, place.bytes).view(place.dtype).view(place.sizes);
}

}  // namespace lockstep::ps
