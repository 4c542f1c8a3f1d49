#include "apps/checkpoint/difference.h"

#include "apps/checkpoint/content.h"
#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/file_names.h"
#include "checkpoint/parts_reader.h"

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/ops/empty.h>

#include <cstring>
#include <set>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using checkpoint::PartsReader;
using checkpoint::TensorEntry;

at::Tensor tensor_in(PartsReader& file, const TensorEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  file.read({{entry.name, layout::whole_slice(entry.shape), tensor}});
  return tensor;
}

// Empty for the same bits.
std::string difference_of(const at::Tensor& one, const at::Tensor& other) {
  if (one.nbytes() == 0 || std::memcmp(one.data_ptr(), other.data_ptr(), one.nbytes()) == 0)
    return {};
  const at::ScalarType wide = one.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = one.to(wide), b = other.to(wide);
  const at::Tensor both_nan = a.isnan().logical_and(b.isnan());
  const at::Tensor differs = a.ne(b).logical_and(both_nan.logical_not());
  const auto count = differs.sum().item<std::int64_t>();
  if (count == 0) return "equal numbers in different bits";
  const at::Tensor most = (a - b).abs().masked_select(differs).max();
  return formatted("{} of {} elements differ, by {} at most", count, one.numel(),
                   most.item<double>());
}

void compare(PartsReader& one, PartsReader& other, const std::string& shown_file,
             Difference& found) {
  std::set<std::string> names;
  for (const PartsReader* file : {&one, &other})
    for (const TensorEntry& entry : file->header().entries) names.insert(entry.name);
  found.tensors += names.size();
  for (const std::string& name : names) {
    const TensorEntry *a = one.find(name), *b = other.find(name);
    std::string text;
    if (a == nullptr || b == nullptr) {
      text = formatted("only in {}", (a != nullptr ? one : other).path().string());
    } else if (kind_of(*a) != kind_of(*b)) {
      text = formatted("{} and {}", kind_of(*a), kind_of(*b));
    } else {
      text = difference_of(tensor_in(one, *a), tensor_in(other, *b));
    }
    if (!text.empty())
      found.lines.push_back(formatted("{}{}: {}", shown_file, visible(name), text));
  }
}

}  // namespace

Difference difference_of(const fs::path& one, const fs::path& other) {
  check_input(fs::is_directory(one) == fs::is_directory(other),
              "expected two checkpoints or two files, found {} and {}", one.string(),
              other.string());
  Difference found;
  Group alone;
  if (!fs::is_directory(one)) {
    PartsReader a(alone, one), b(alone, other);
    compare(a, b, "", found);
    return found;
  }
  for (const char* name : checkpoint::tensor_files) {
    const bool in_one = fs::exists(one / name), in_other = fs::exists(other / name);
    if (in_one != in_other)
      found.lines.push_back(formatted("{}: only in {}", name, (in_one ? one : other).string()));
    if (!in_one || !in_other) continue;
    PartsReader a(alone, one / name), b(alone, other / name);
    compare(a, b, formatted("{}: ", name), found);
  }
  return found;
}

}  // namespace lockstep::apps
