#include "comm/backend/posted_call.h"

#include <lockstep/base/fingerprint.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/backend/stream_point.h"
#include "comm/call/traits.h"

namespace lockstep {

const at::Tensor& operand(const Call& call) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::scatter:
    case Collective::recv:
      return call.output;
    default:
      return call.input;
  }
}

namespace {

// The caller may give its tensor another storage meanwhile.
at::Tensor detached(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

}  // namespace

PostedCall::PostedCall(const Call& call, std::uint64_t number)
    : collective(call.collective),
      op(call.op),
      root(call.root),
      input(detached(call.input)),
      output(call.output.is_same(call.input) ? input : detached(call.output)),
      input_counts(call.input_counts.begin(), call.input_counts.end()),
      output_counts(call.output_counts.begin(), call.output_counts.end()),
      tag(call.tag),
      timeout(call.timeout),
      where(call.where),
      after(stream_point(call.input.defined() ? call.input : call.output)),
      number(number) {
  if (const auto& tensor = operand(call); tensor.defined()) {
    dtype = tensor.scalar_type();
    elements = tensor.numel();
  }
}

PostedCall PostedCall::without_tensors() const {
  auto copy = *this;
  copy.input = copy.output = at::Tensor();
  copy.after = nullptr;
  return copy;
}

bool PostedCall::reduces() const { return combines(collective); }

bool PostedCall::has_root() const { return lockstep::has_root(collective); }

bool same_call(const PostedCall& a, const PostedCall& b) {
  if (a.tag != b.tag || a.dtype != b.dtype) return false;
  if (a.is_message()) return b.is_message() && a.elements == b.elements;
  if (a.collective != b.collective) return false;
  if (a.reduces() && a.op != b.op) return false;
  if (a.has_root() && a.root != b.root) return false;
  if (a.collective == Collective::all_to_all) {
    return a.input_counts.empty() == b.input_counts.empty() &&
           (!a.input_counts.empty() || a.elements == b.elements);
  }
  return a.elements == b.elements && a.input_counts == b.input_counts &&
         a.output_counts == b.output_counts;
}

std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all, int size,
                           int part) {
  return counts.empty() ? all / size : counts.at(part);
}

bool counts_agree(const PostedCall& from, int from_rank, const PostedCall& to, int to_rank,
                  int size) {
  return part_elements(from.input_counts, from.input.numel(), size, to_rank) ==
         part_elements(to.output_counts, to.output.numel(), size, from_rank);
}

std::uint64_t fingerprint_of(const PostedCall& call) {
  auto collective = call.is_message() ? Collective::send : call.collective;
  bool uneven = !call.input_counts.empty() || !call.output_counts.empty();
  bool own_counts = call.collective == Collective::all_to_all && uneven;
  auto hash = fingerprint_of(
      call.number, static_cast<int>(collective), call.reduces() ? static_cast<int>(call.op) : -1,
      call.has_root() ? call.root : -1, call.dtype ? static_cast<int>(*call.dtype) : -1, uneven,
      own_counts ? std::int64_t{0} : call.elements);
  hash = combine_fingerprints(hash, fingerprint(call.tag));
  if (own_counts) return hash;
  hash = combine_fingerprints(hash, fingerprint_of(std::span(call.input_counts)));
  return combine_fingerprints(hash, fingerprint_of(std::span(call.output_counts)));
}

std::string describe(const std::source_location& where) {
  std::string_view file = where.file_name();
  return formatted("{}:{}", file.substr(file.rfind('/') + 1), where.line());
}

std::string describe(const PostedCall& call) {
  std::vector<std::string> notes;
  if (!call.tag.empty()) notes.push_back(call.tag);
  if (call.dtype)
    notes.push_back(
        format_bytes(call.elements * static_cast<std::int64_t>(c10::elementSize(*call.dtype))));
  auto text = formatted("{} #{}", name_of(call.collective), call.number);
  if (call.is_message())
    text +=
        formatted(" {} rank {}", call.collective == Collective::send ? "to" : "from", call.root);
  return notes.empty() ? text : formatted("{} ({})", text, listed(notes, ", "));
}

std::string describe_due(const PostedCall& call) {
  if (call.collective == Collective::send) return "recv for " + describe(call);
  if (call.collective == Collective::recv) return "send for " + describe(call);
  return describe(call);
}

std::string describe_fully(const PostedCall& call) {
  std::vector<std::string> notes;
  if (call.reduces()) notes.emplace_back(name_of(call.op));
  if (call.has_root()) notes.push_back(formatted("root {}", call.root));
  if (call.is_message())
    notes.push_back(
        formatted("{} rank {}", call.collective == Collective::send ? "to" : "from", call.root));
  if (call.dtype) notes.push_back(formatted("{} x {}", call.elements, c10::toString(*call.dtype)));
  if (!call.input_counts.empty())
    notes.push_back(formatted("input counts {}", listed(call.input_counts, " + ")));
  if (!call.output_counts.empty())
    notes.push_back(formatted("output counts {}", listed(call.output_counts, " + ")));
  if (!call.tag.empty()) notes.push_back(call.tag);
  auto text = formatted("{} #{}", name_of(call.collective), call.number);
  if (!notes.empty()) text += formatted(" ({})", listed(notes, ", "));
  return formatted("{} at {}", text, describe(call.where));
}

}  // namespace lockstep
