#include "module/rank_check.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "module/tensor_memory.h"

#include <lockstep/base/error.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace lockstep::modules {
namespace {

struct Digest {
  std::int64_t fingerprint = 0;
  std::int64_t bytes = 0;
  bool operator==(const Digest&) const = default;
};

std::vector<Digest> exchange(Group group, Digest mine, const CallOptions& call) {
  at::Tensor input = at::empty({2}, at::kLong);
  at::Tensor output = at::empty({2 * group.size()}, at::kLong);
  input.data_ptr<std::int64_t>()[0] = mine.fingerprint;
  input.data_ptr<std::int64_t>()[1] = mine.bytes;
  group.all_gather(output, input, call).wait();
  std::vector<Digest> all;
  const auto* values = output.data_ptr<std::int64_t>();
  for (int rank = 0; rank < group.size(); ++rank)
    all.push_back({values[2 * rank], values[2 * rank + 1]});
  return all;
}

// The texts of all ranks.
std::vector<std::string> exchange(Group group, const std::string& mine,
                                  const std::vector<Digest>& all, const CallOptions& call) {
  std::vector<std::int64_t> counts;
  std::int64_t total = 0;
  for (const Digest& digest : all) {
    counts.push_back(digest.bytes);
    total += digest.bytes;
  }
  at::Tensor input = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
  at::Tensor output = at::empty({total}, at::kByte);
  if (!mine.empty()) std::memcpy(input.data_ptr(), mine.data(), mine.size());
  group.all_gather(output, input, counts, call).wait();
  std::vector<std::string> texts;
  const char* from = static_cast<const char*>(output.data_ptr());
  for (std::int64_t count : counts) {
    texts.emplace_back(from, static_cast<std::size_t>(count));
    from += count;
  }
  return texts;
}

// The first line that differs, as each of the two has it.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_of_a(a), lines_of_b(b);
  for (;;) {
    std::string line_of_a, line_of_b;
    bool has_a = static_cast<bool>(std::getline(lines_of_a, line_of_a));
    bool has_b = static_cast<bool>(std::getline(lines_of_b, line_of_b));
    if (!has_a && !has_b) return {"the same text", "the same text"};
    if (has_a && has_b && line_of_a == line_of_b) continue;
    return {has_a ? line_of_a : "nothing more", has_b ? line_of_b : "nothing more"};
  }
}

std::string describe(std::string_view kind, const std::string& name, const at::Tensor& tensor) {
  if (tensor.is_nested()) return formatted("{} {}: nested", kind, name);
  std::string text = formatted("{} {}: {} [{}]", kind, name, c10::toString(tensor.scalar_type()),
                               listed(tensor.sizes(), ", "));
  if (tensor.layout() != at::kStrided) return text + " " + c10::str(tensor.layout());
  if (tensor.is_meta()) text += " without memory";
  if (tensor.is_inference()) text += " made inside InferenceMode";
  if (!tensor.is_contiguous())
    text += formatted(" with strides [{}]", listed(tensor.strides(), ", "));
  return text;
}

}  // namespace

std::vector<std::string> lines_of(const ModuleTensors& tensors) {
  std::vector<std::string> lines, names;
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor, aliases] : tensors.parameters) {
    std::string line = describe("parameter", name, tensor);
    if (!tensor.requires_grad()) line += " without gradient";
    for (const std::string& alias : aliases) line += " tied to " + alias;
    lines.push_back(std::move(line));
    names.push_back(name);
    all.push_back(tensor);
  }
  for (const auto& [name, tensor] : tensors.buffers) {
    lines.push_back(describe("buffer", name, tensor));
    names.push_back(name);
    all.push_back(tensor);
  }
  std::vector<std::optional<std::size_t>> sharing = first_sharing(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (sharing[i]) lines[i] += " shares memory with " + names[*sharing[i]];
  return lines;
}

void check_same_lines(const Group& group, const std::vector<std::string>& lines,
                      const CallOptions& call) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  Digest mine{static_cast<std::int64_t>(fingerprint(text)), static_cast<std::int64_t>(text.size())};
  std::vector<Digest> digests = exchange(group, mine, call);
  auto other = std::find_if(digests.begin(), digests.end(),
                            [&](const Digest& one) { return one != digests.front(); });
  if (other == digests.end()) return;
  auto rank = static_cast<std::size_t>(other - digests.begin());
  std::vector<std::string> texts = exchange(group, text, digests, call);
  auto [found_at_0, found_at_rank] = first_difference(texts.front(), texts[rank]);
  throw Mismatch(formatted("the ranks' models differ: rank 0 has {}; rank {} has {}", found_at_0,
                           rank, found_at_rank));
}

}  // namespace lockstep::modules
