#include "sys/file_kind.h"

#include "base/visible.h"

#include <array>
#include <cstring>
#include <optional>

namespace lockstep::sys {
namespace {

using std::string_view_literals::operator""sv;

struct Magic {
  std::string_view begin, kind;
};

constexpr std::array<Magic, 9> magics{{
    {"\x93NUMPY"sv, "an array of NumPy (.npy)"},
    {"PK\3\4"sv, "a zip archive, such as .npz or a file of torch.save()"},
    {"PK\5\6"sv, "a zip archive without files"},
    {"PAR1"sv, "a Parquet file"},
    {"ARROW1\0\0"sv, "an Arrow file"},
    {"\x28\xb5\x2f\xfd"sv, "a file compressed by zstd"},
    {"\xfd"
     "7zXZ\0"sv,
     "a file compressed by xz"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    {"\x80\2\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv,
     "a file of torch.save() in the format before PyTorch 1.6"},
}};

template <class Number>
Number number_at(std::string_view begin, std::size_t place) {
  Number number{};
  if (begin.size() >= place + sizeof number)
    std::memcpy(&number, begin.data() + place, sizeof number);
  return number;
}

bool is_gzip(std::string_view begin) {
  return begin.size() >= 10 && begin.starts_with("\x1f\x8b\x08"sv) &&
         static_cast<unsigned char>(begin[3]) < 0x20 &&
         (begin[8] == 0 || begin[8] == 2 || begin[8] == 4) &&
         (static_cast<unsigned char>(begin[9]) < 14 || begin[9] == '\xff');
}

// Recognises a message of Arrow's stream format, as written by the Arrow libraries, by its length
// and the offset of its root table.
bool is_arrow_stream(std::string_view begin, std::uint64_t size) {
  const auto length = number_at<std::uint32_t>(begin, 4);
  return begin.starts_with("\xff\xff\xff\xff"sv) && length > 0 && length % 8 == 0 &&
         length < size && number_at<std::uint32_t>(begin, 8) == 16;
}

bool is_safetensors(std::string_view begin, std::uint64_t size) {
  const auto length = number_at<std::uint64_t>(begin, 0);
  return begin.size() >= 10 && length >= 2 && length <= size - 8 &&
         (begin.substr(8).starts_with("{\"") || begin.substr(8).starts_with("{}"));
}

// Recognises the header of 256 numbers that llm.c writes before the tokens: a magic number, a
// version and the number of tokens.
bool is_llm_c(std::string_view begin, std::uint64_t size) {
  const auto magic = number_at<std::uint32_t>(begin, 0);
  const auto count = std::uint64_t{number_at<std::uint32_t>(begin, 8)};
  return (magic == 20240520 || magic == 20240801) &&
         (size == 1024 + 2 * count || size == 1024 + 4 * count);
}

// Recognises a pickle of protocol 4 or 5 whose first frame is not longer than the file.
bool is_pickle(std::string_view begin, std::uint64_t size) {
  if (begin.size() < 11 ||
      !(begin.starts_with("\x80\4\x95"sv) || begin.starts_with("\x80\5\x95"sv)))
    return false;
  return number_at<std::uint64_t>(begin, 3) <= size - 11;
}

// Recognises UTF-8 without control characters; the last character may be truncated.
bool is_text(std::string_view begin) {
  constexpr std::size_t fewest = 32, longest_character = 4;
  if (begin.size() < fewest) return false;
  while (!begin.empty()) {
    const std::optional<Character> one = first_character(begin);
    if (!one) return begin.size() < longest_character;
    const bool is_control = one->code_point < 0x20 || one->code_point == 0x7f;
    if (is_control && std::string_view("\t\n\r\f").find(begin[0]) == std::string_view::npos)
      return false;
    begin.remove_prefix(one->bytes);
  }
  return true;
}

}  // namespace

std::string_view file_kind(std::string_view begin, std::uint64_t size) {
  begin = begin.substr(0, file_kind_bytes);
  if (is_safetensors(begin, size)) return safetensors_kind;
  for (const Magic& magic : magics)
    if (begin.starts_with(magic.begin)) return magic.kind;
  if (is_gzip(begin)) return "a file compressed by gzip";
  if (is_arrow_stream(begin, size)) return "an Arrow stream";
  if (is_llm_c(begin, size)) return "a token file of llm.c, which begins with a header";
  if (is_pickle(begin, size)) return "a pickle of Python";
  if (is_text(begin)) return begin[0] == '{' || begin[0] == '[' ? "JSON" : "text";
  return {};
}

}  // namespace lockstep::sys
