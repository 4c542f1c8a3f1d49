#include "apps/checkpoint/difference.h"

#include "apps/checkpoint/content.h"
#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/folders.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/shards.h"

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using checkpoint::PartsReader;
using checkpoint::TensorEntry;

// Bytes that are compared at a time, so that a few megabytes suffice, even as doubles.
constexpr std::uint64_t compared_bytes = std::uint64_t{1} << 20;

// Differences of the elements compared so far.
struct Found {
  std::int64_t different = 0;
  bool other_bits = false;
  double most = 0;  // for floating-point dtypes
  std::uint64_t most_of_integers = 0;
};

// Maps signed values to unsigned values in the same order.
std::uint64_t as_unsigned(const at::Tensor& values, std::int64_t i) {
  if (values.scalar_type() == at::kUInt64) return values.const_data_ptr<std::uint64_t>()[i];
  return static_cast<std::uint64_t>(values.const_data_ptr<std::int64_t>()[i]) ^
         (std::uint64_t{1} << 63);
}

void add_integers(const at::Tensor& one, const at::Tensor& other, Found& found) {
  const bool is_largest = one.scalar_type() == at::kUInt64;
  const at::Tensor a = is_largest ? one : one.to(at::kLong);
  const at::Tensor b = is_largest ? other : other.to(at::kLong);
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const std::uint64_t x = as_unsigned(a, i), y = as_unsigned(b, i);
    if (x == y) continue;
    ++found.different;
    found.most_of_integers = std::max(found.most_of_integers, x > y ? x - y : y - x);
  }
}

void add_numbers(const at::Tensor& one, const at::Tensor& other, Found& found) {
  const at::ScalarType wide = one.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = one.to(wide), b = other.to(wide);
  const at::Tensor both_nan = a.isnan().logical_and(b.isnan());
  const at::Tensor differs = a.ne(b).logical_and(both_nan.logical_not());
  const auto count = differs.sum().item<std::int64_t>();
  if (count == 0) return;
  found.different += count;
  const double most = (a - b).abs().masked_select(differs).max().item<double>();
  if (!(most <= found.most)) found.most = most;  // also keeps NaN
}

at::Tensor some_of(PartsReader& file, const TensorEntry& entry, std::uint64_t offset,
                   std::uint64_t bytes) {
  const auto element = static_cast<std::uint64_t>(c10::elementSize(entry.dtype));
  at::Tensor values = at::empty({static_cast<std::int64_t>(bytes / element)}, entry.dtype);
  file.read_bytes(entry, offset,
                  {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

// Returns an empty text if all bits are equal.
std::string difference_of(PartsReader& one, const TensorEntry& a, PartsReader& other,
                          const TensorEntry& b) {
  const std::uint64_t bytes = a.end - a.begin;
  const bool is_integer = c10::isIntegralType(a.dtype, /*includeBool=*/true);
  Found found;
  for (std::uint64_t offset = 0; offset < bytes; offset += compared_bytes) {
    const std::uint64_t now = std::min(compared_bytes, bytes - offset);
    const at::Tensor x = some_of(one, a, offset, now), y = some_of(other, b, offset, now);
    if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), now) == 0) continue;
    found.other_bits = true;
    if (is_integer)
      add_integers(x, y, found);
    else
      add_numbers(x, y, found);
  }
  if (!found.other_bits) return {};
  if (found.different == 0) return "equal values with different bits";
  const auto elements = static_cast<std::int64_t>(bytes / c10::elementSize(a.dtype));
  return formatted(
      "{} of {} elements differ, by at most {}", found.different, elements,
      is_integer ? formatted("{}", found.most_of_integers) : formatted("{}", found.most));
}

bool has(const fs::path& folder, const char* name) {
  return fs::exists(folder / name) || checkpoint::has_index(folder / name);
}

void compare(PartsReader& one, PartsReader& other, const std::string& shown_file,
             Difference& found) {
  std::set<std::string> names;
  for (const PartsReader* file : {&one, &other})
    for (const TensorEntry& entry : file->entries()) names.insert(entry.name);
  found.tensors += names.size();
  for (const std::string& name : names) {
    const TensorEntry *a = one.find(name), *b = other.find(name);
    std::string text;
    if (a == nullptr || b == nullptr) {
      text = formatted("only in {}", (a != nullptr ? one : other).path().string());
    } else if (kind_of(*a) != kind_of(*b)) {
      text = formatted("{} and {}", kind_of(*a), kind_of(*b));
    } else {
      text = difference_of(one, *a, other, *b);
    }
    if (!text.empty())
      found.lines.push_back(formatted("{}{}: {}", shown_file, visible(name), text));
  }
}

}  // namespace

Difference difference_of(const fs::path& one, const fs::path& other) {
  check_input(fs::is_directory(one) == fs::is_directory(other),
              "diff: expected two folders or two files, found one of each: {} and {}", one.string(),
              other.string());
  Difference found;
  Group alone;
  if (!fs::is_directory(one)) {
    PartsReader a(alone, tensor_files_of(one).front()), b(alone, tensor_files_of(other).front());
    compare(a, b, "", found);
    return found;
  }
  for (const char* name : checkpoint::tensor_files) {
    const bool in_one = has(one, name), in_other = has(other, name);
    if (in_one != in_other)
      found.lines.push_back(formatted("{}: only in {}", name, (in_one ? one : other).string()));
    if (!in_one || !in_other) continue;
    PartsReader a(alone, one / name), b(alone, other / name);
    compare(a, b, formatted("{}: ", name), found);
  }
  return found;
}

}  // namespace lockstep::apps
