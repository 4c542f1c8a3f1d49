#include <lockstep/data/tokens.h>

#include "base/check.h"
#include "data/index_tensor.h"
#include "sys/files.h"
#include "sys/mapped_file.h"
#include "sys/plain_file.h"

#include <lockstep/base/error.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

std::int64_t bytes_of(at::ScalarType dtype, const char* function) {
  check(dtype == at::kUInt16 || dtype == at::kUInt32,
        "{}: expected the dtype UInt16 or UInt32, found {}", function, c10::toString(dtype));
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// Calls look(begin, piece) for a few million tokens at a time, because each piece is copied to
// int64.
template <class Look>
void for_each_piece(const at::Tensor& tokens, Look look) {
  constexpr std::int64_t piece = 1 << 22;
  for (std::int64_t begin = 0; begin < tokens.size(0); begin += piece)
    look(begin, tokens.narrow(0, begin, std::min(piece, tokens.size(0) - begin)).to(at::kLong));
}

void check_below(const at::Tensor& tokens, std::int64_t least, std::int64_t most,
                 const std::string& what) {
  for_each_piece(tokens, [&](std::int64_t begin, const at::Tensor& some) {
    const at::Tensor wrong = some.lt(least).logical_or_(some.gt(most));
    if (!wrong.any().item<bool>()) return;
    const auto place = wrong.to(at::kByte).argmax().item<std::int64_t>();
    throw BadInput(formatted("{}: expected tokens from {} to {}, found {} at index {}", what, least,
                             most, some[place].item<std::int64_t>(), begin + place));
  });
}

// Rejects files of other formats, whose header or wider numbers would be read as tokens.
void check_is_raw(const sys::PlainFile& file, const std::string& what) {
  std::string begin(sys::file_kind_bytes, '\0');
  begin.resize(file.read_at(0, std::as_writable_bytes(std::span(begin))));
  const std::string_view kind = sys::file_kind(begin, file.size());
  check_input(kind.empty(),
              "{}: expected token ids and nothing else, found {}; with NumPy, write them by "
              "tokens.astype(\"uint16\").tofile(path)",
              what, kind);
}

// Rejects tokens of 4 or 8 bytes that are read as 2 or 4 bytes: every second one is 0.
void check_width(const at::Tensor& tokens, const std::string& what) {
  constexpr std::int64_t fewest = 64, some = 1 << 16;
  if (tokens.size(0) < fewest) return;
  const at::Tensor pairs =
      tokens.narrow(0, 0, std::min(tokens.size(0) / 2 * 2, some)).to(at::kLong).view({-1, 2});
  const bool is_wider = !pairs.select(1, 1).any().item<bool>();
  check_input(!is_wider || !pairs.select(1, 0).any().item<bool>(),
              "{}: expected tokens of {} bytes ({}), found that every second one is 0, as in "
              "tokens of {} bytes or more",
              what, tokens.element_size(), c10::toString(tokens.scalar_type()),
              2 * tokens.element_size());
}

}  // namespace

at::Tensor map_tokens(const fs::path& file, at::ScalarType dtype, std::int64_t vocabulary) {
  const std::int64_t element = bytes_of(dtype, "map_tokens");
  const std::string what = "reading " + file.string();
  try {
    check_is_raw(sys::PlainFile(file), what);
    auto mapped = std::make_shared<sys::MappedFile>(file);
    const auto bytes = static_cast<std::int64_t>(mapped->bytes().size());
    check_input(bytes > 0 && bytes % element == 0,
                "{}: expected tokens of {} bytes ({}), found a file of {} bytes", what, element,
                c10::toString(dtype), bytes);
    // The tensor is never written: the pages are read-only.
    auto* begin = const_cast<std::byte*>(mapped->bytes().data());
    at::Tensor tokens = at::from_blob(
        begin, {bytes / element}, [mapped](void*) mutable { mapped.reset(); }, dtype);
    check_width(tokens, what);
    if (vocabulary > 0) check_below(tokens, 0, vocabulary - 1, what);
    return tokens;
  } catch (const SystemError& error) {
    throw BadInput(formatted("{}: expected a readable file, found: {}", what,
                             std::generic_category().message(error.error_number())));
  }
}

void write_tokens(const fs::path& file, const at::Tensor& tokens, at::ScalarType dtype) {
  const std::int64_t element = bytes_of(dtype, "write_tokens");
  check(tokens.dim() == 1 && at::isIntegralType(tokens.scalar_type(), /*includeBool=*/false),
        "write_tokens: expected integers of one dim, found {} with {} dims",
        c10::toString(tokens.scalar_type()), tokens.dim());
  check_below(tokens, 0, (std::int64_t{1} << 8 * element) - 1, "writing " + file.string());
  const at::Tensor host = tokens.to(at::kCPU).to(dtype).contiguous();
  sys::AtomicFile::write(
      file, std::string_view(static_cast<const char*>(host.const_data_ptr()), host.nbytes()));
}

namespace {

void check_block(const char* who, const at::Tensor& tokens, std::int64_t block) {
  check(tokens.dim() == 1 && !tokens.is_floating_point() && block >= 1,
        "{}: expected integers of one dim and a block >= 1, found {} [{}] and {}", who,
        c10::toString(tokens.scalar_type()), listed(tokens.sizes(), ", "), block);
}

}  // namespace

RandomBlocks::RandomBlocks(at::Tensor tokens, std::int64_t block)
    : tokens_(std::move(tokens)), block_(block) {
  check_block("RandomBlocks", tokens_, block_);
  check_input(tokens_.size(0) > block_,
              "RandomBlocks: expected a text of more than {} tokens (the block), found {}", block_,
              tokens_.size(0));
}

torch::data::Example<> RandomBlocks::draw(std::int64_t rows, at::Generator generator, int rank,
                                          int world) const {
  const at::Tensor starts =
      at::randint(tokens_.size(0) - block_, {rows * world}, std::move(generator), at::kLong);
  const at::Tensor mine = starts.narrow(0, rows * rank, rows);
  const at::Tensor places = mine.unsqueeze(1) + at::arange(block_ + 1, at::kLong);
  const at::Tensor window = tokens_.index({places}).to(at::kLong);
  return {window.narrow(1, 0, block_).contiguous(), window.narrow(1, 1, block_).contiguous()};
}

SequentialBlocks::SequentialBlocks(at::Tensor tokens, std::int64_t block)
    : tokens_(std::move(tokens)), block_(block) {
  check_block("SequentialBlocks", tokens_, block_);
  check_input(tokens_.size(0) >= 2,
              "SequentialBlocks: expected a text of two tokens or more, found {}", tokens_.size(0));
}

torch::data::Example<> SequentialBlocks::get_batch(c10::ArrayRef<std::size_t> indices) {
  const at::Tensor blocks = index_tensor(indices, *size(), "SequentialBlocks");
  const std::int64_t targets = tokens_.size(0) - 1;
  const at::Tensor places = (blocks * block_).unsqueeze(1) + at::arange(block_, at::kLong);
  const at::Tensor padding = places >= targets;
  const at::Tensor inside = places.clamp_max(targets - 1);
  return {tokens_.index({inside}).to(at::kLong).masked_fill_(padding, 0),
          tokens_.index({inside + 1}).to(at::kLong).masked_fill_(padding, no_target)};
}

std::optional<std::size_t> SequentialBlocks::size() const {
  return static_cast<std::size_t>((tokens_.size(0) - 1 + block_ - 1) / block_);
}

std::int64_t count_targets(const at::Tensor& target) {
  return (target != SequentialBlocks::no_target).sum().item<std::int64_t>();
}

}  // namespace lockstep::data
