#include "parallel/server/key_plan.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"

#include <lockstep/layout/tensor_slice.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace lockstep::ps {
namespace {

// Returns the first row that begins at or after `byte` of the key, which has `rows` rows.
std::int64_t first_row_at(std::int64_t byte, std::int64_t row_bytes, std::int64_t rows) {
  if (byte <= 0) return 0;
  return std::min(rows, (byte + row_bytes - 1) / row_bytes);
}

std::string_view next_field(std::string_view& line, char end) {
  auto length = line.find(end);
  check_input(length != std::string_view::npos, "parameter server: a list of keys is cut off");
  auto field = line.substr(0, length);
  line.remove_prefix(length + 1);
  return field;
}

std::int64_t number_in(std::string_view field) {
  auto number = parse_integer(field);
  check_input(number.has_value() && *number >= 0,
              "parameter server: a list of keys: expected a number, found '{}'", field);
  return *number;
}

// A name may contain blanks and line ends, so its length precedes it.
std::string_view take_name(std::string_view& text) {
  const std::int64_t bytes = number_in(next_field(text, ' '));
  check_input(static_cast<std::uint64_t>(bytes) < text.size() &&
                  text[static_cast<std::size_t>(bytes)] == ' ',
              "parameter server: a list of keys is cut off in a name");
  auto name = text.substr(0, static_cast<std::size_t>(bytes));
  text.remove_prefix(name.size() + 1);
  return name;
}

std::string words_of(const Key& key) {
  return formatted("{} [{}] with elements of size {} (dtype {}){}", key.name,
                   listed(key.sizes, ", "), key.element_bytes, key.dtype,
                   key.by_rows ? ", by rows" : "");
}

}  // namespace

std::int64_t Key::row_elements() const {
  return sizes.empty() ? 1 : layout::numel_of(std::span(sizes).subspan(1));
}

std::vector<std::vector<Piece>> plan_keys(std::span<const Key> keys, int servers) {
  check(servers >= 1, "plan_keys: expected at least 1 server, found {}", servers);
  std::int64_t total = 0;
  for (const Key& key : keys) total += key.rows() * key.row_bytes();
  std::vector<std::vector<Piece>> plan(static_cast<std::size_t>(servers));
  std::int64_t before = 0;
  for (int number = 0; number < static_cast<int>(keys.size()); ++number) {
    const Key& key = keys[static_cast<std::size_t>(number)];
    const std::int64_t row_bytes = key.row_bytes();
    if (row_bytes == 0 || key.rows() == 0) continue;
    for (std::int64_t server = 0; server < servers; ++server) {
      // Rounded up, so that a row that begins at the border belongs to the next server.
      const std::int64_t from = (total * server + servers - 1) / servers - before;
      const std::int64_t to = (total * (server + 1) + servers - 1) / servers - before;
      const layout::Range rows{
          first_row_at(from, row_bytes, key.rows()),
          server + 1 == servers ? key.rows() : first_row_at(to, row_bytes, key.rows())};
      if (!rows.empty()) plan[static_cast<std::size_t>(server)].push_back({number, rows});
    }
    before += key.rows() * row_bytes;
  }
  return plan;
}

std::string encode_keys(std::span<const Key> keys) {
  std::string text;
  for (const Key& key : keys)
    text += formatted("{} {} {} {} {} {} {}\n", key.name.size(), key.name, key.dtype,
                      key.element_bytes, key.by_rows ? 1 : 0, key.sizes.size(),
                      listed(key.sizes, " ") + (key.sizes.empty() ? "" : " "));
  return text;
}

std::vector<Key> decode_keys(std::string_view text) {
  std::vector<Key> keys;
  while (!text.empty()) {
    Key key;
    key.name = take_name(text);
    std::string_view line = next_field(text, '\n');
    key.dtype = static_cast<int>(number_in(next_field(line, ' ')));
    key.element_bytes = number_in(next_field(line, ' '));
    key.by_rows = number_in(next_field(line, ' ')) != 0;
    const std::int64_t dims = number_in(next_field(line, ' '));
    for (std::int64_t dim = 0; dim < dims; ++dim)
      key.sizes.push_back(number_in(next_field(line, ' ')));
    (void)layout::numel_of(key.sizes);  // throws if it does not fit 64 bits
    keys.push_back(std::move(key));
  }
  return keys;
}

KeyDifference first_difference(std::span<const Key> here, std::span<const Key> there) {
  auto [mine, theirs] = std::ranges::mismatch(here, there);
  return {mine == here.end() ? "nothing more" : words_of(*mine),
          theirs == there.end() ? "nothing more" : words_of(*theirs)};
}

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
    BufferSlot place{number, bytes_, piece.rows.length() * key.row_bytes(),
                     static_cast<at::ScalarType>(key.dtype), sizes_of(key, piece)};
    bytes_ = layout::round_up(bytes_ + place.bytes, 64);
    places_.push_back(std::move(place));
  }
}

at::Tensor Share::make_buffer() const { return at::empty({bytes_}, at::kByte); }

at::Tensor Share::view(const at::Tensor& buffer, std::size_t i) const {
  const BufferSlot& place = places_[i];
  return buffer.narrow(0, place.offset, place.bytes).view(place.dtype).view(place.sizes);
}

}  // namespace lockstep::ps
