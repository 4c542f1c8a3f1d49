#include "comm/call/record.h"

#include "base/fingerprint.h"
#include "base/format.h"

#include <limits>
#include <utility>

namespace lockstep {

GroupNames::GroupNames(std::string name, std::vector<int> world_ranks)
    : name_(std::move(name)), world_ranks_(std::move(world_ranks)) {}

int GroupNames::world_rank(int rank) const {
  const auto index = static_cast<std::size_t>(rank);  // a peer's text may contain any number
  return index < world_ranks_.size() ? world_ranks_[index] : rank;
}

GroupNames GroupNames::part(std::span<const int> ranks, std::string name) const {
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
  return {std::move(name), std::move(world_ranks)};
}

std::string GroupNames::in_world(std::span<const int> ranks) const {
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
  if (std::ranges::equal(ranks, world_ranks)) return {};
  return formatted(" ({} of the world)", rank_list(world_ranks));
}

std::string GroupNames::rank(int rank) const {
  return formatted("rank {}{}", rank, in_world({&rank, 1}));
}

std::string GroupNames::ranks_own(int rank) const {
  return formatted("rank {}'s{}", rank, in_world({&rank, 1}));
}

std::string GroupNames::ranks(std::span<const int> ranks) const {
  return rank_list(ranks) + in_world(ranks);
}

std::string GroupNames::ending() const {
  return name_ == "world" ? std::string() : formatted(" [group {}]", name_);
}

namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

using Notes = std::vector<std::string>;

bool names_message(std::string_view collective) {
  return collective == name_of(Collective::send) || collective == name_of(Collective::recv);
}

CallWords words_of(const CallRecord& call) {
  CallWords words{.collective = name_of(call.collective), .number = call.number, .tag = call.tag};
  if (combines(call.collective)) words.op = name_of(call.op);
  if (has_root(call.collective) || is_message(call.collective)) words.root = call.root;
  words.is_uneven = call.is_uneven();
  if (!(words.is_uneven && call.collective == Collective::all_to_all))
    words.elements = call.elements;
  if (call.dtype) words.dtype = name_of(*call.dtype);
  if (!call.file.empty()) words.where = formatted("{}:{}", call.file, call.line);
  return words;
}

std::string described(const CallWords& call, Notes notes, const GroupNames& group) {
  if (!call.tag.empty()) notes.insert(notes.begin(), std::string(call.tag));
  if (names_message(call.collective) && group.world_rank(call.root) != call.root)
    notes.insert(notes.begin(), formatted("rank {} of the world", group.world_rank(call.root)));
  if (!call.where.empty()) notes.push_back(call.where);
  auto text = formatted("{} #{}", call.collective, call.number);
  if (names_message(call.collective))
    text += formatted(" {} rank {}", call.collective == name_of(Collective::send) ? "to" : "from",
                      call.root);
  return notes.empty() ? text : formatted("{} ({})", text, listed(notes, ", "));
}

std::int64_t count_at(const std::vector<std::int64_t>& counts, int rank) {
  return static_cast<std::size_t>(rank) < counts.size() ? counts[static_cast<std::size_t>(rank)]
                                                        : 0;
}

// Describes the counts of `call` that differ from the counts of `other`.
std::string counts_that_differ(const CallRecord& call, const CallRecord& other, int other_rank,
                               const GroupNames& group) {
  if (!call.is_uneven() || !other.is_uneven() || call.collective != other.collective) return {};
  if (call.collective == Collective::all_to_all)
    return formatted("{} to {}, {} from it", count_at(call.input_counts, other_rank),
                     group.rank(other_rank), count_at(call.output_counts, other_rank));
  const auto& own = call.input_counts.empty() ? call.output_counts : call.input_counts;
  const auto& theirs = other.input_counts.empty() ? other.output_counts : other.input_counts;
  for (int rank = 0; rank < static_cast<int>(std::max(own.size(), theirs.size())); ++rank) {
    if (count_at(own, rank) != count_at(theirs, rank))
      return formatted("{} of {}", count_at(own, rank), group.rank(rank));
  }
  return {};
}

std::string described_fully(const CallWords& call, std::string_view counts,
                            const GroupNames& group) {
  Notes notes;
  if (!call.op.empty()) notes.emplace_back(call.op);
  if (call.root >= 0 && !names_message(call.collective)) {
    const int in_world = group.world_rank(call.root);
    notes.push_back(in_world == call.root
                        ? formatted("root {}", call.root)
                        : formatted("root {} (rank {} of the world)", call.root, in_world));
  }
  if (!call.dtype.empty() && call.elements < 0)
    notes.emplace_back(call.dtype);
  else if (!call.dtype.empty())
    notes.push_back(formatted("{} x {}", call.elements, call.dtype));
  if (call.is_uneven) notes.push_back(counts.empty() ? "uneven" : formatted("uneven: {}", counts));
  return described(call, std::move(notes), group);
}

// Reads a list after its length. The length is limited by the number of characters that remain.
std::vector<std::int64_t> read_counts(WordReader& words) {
  constexpr auto any = std::numeric_limits<std::int64_t>::max();
  auto count = words.number(0, static_cast<std::int64_t>(words.rest().size()));
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count && words.is_good(); ++i)
    values.push_back(words.number(0, any));
  return values;
}

// Replaces characters that would end the word or the line.
std::string plain(std::string text, bool keeps_blanks) {
  for (char& letter : text) {
    if (letter == '\n' || letter == '\r' || (letter == ' ' && !keeps_blanks))
      letter = keeps_blanks ? ' ' : '_';
  }
  return text;
}

std::string written(const std::vector<std::int64_t>& counts) {
  return counts.empty() ? "0" : formatted("{} {}", counts.size(), listed(counts, " "));
}

}  // namespace

CallRecord record_of(const CallInfo& call) {
  return {.collective = call.collective,
          .op = call.op,
          .root = call.root,
          .dtype = call.dtype,
          .elements = call.elements,
          .input_counts = {call.input_counts.begin(), call.input_counts.end()},
          .output_counts = {call.output_counts.begin(), call.output_counts.end()},
          .tag = std::string(call.tag),
          .file = std::string(base_name(call.where.file_name())),
          .line = call.where.line(),
          .number = call.id.number,
          .timeout = call.timeout};
}

bool same_call(const CallRecord& a, const CallRecord& b) {
  if (a.tag != b.tag || a.dtype != b.dtype) return false;
  if (is_message(a.collective)) return is_message(b.collective) && a.elements == b.elements;
  if (a.collective != b.collective) return false;
  if (combines(a.collective) && a.op != b.op) return false;
  if (has_root(a.collective) && a.root != b.root) return false;
  if (a.collective == Collective::all_to_all)
    return a.is_uneven() == b.is_uneven() && (a.is_uneven() || a.elements == b.elements);
  return a.elements == b.elements && a.input_counts == b.input_counts &&
         a.output_counts == b.output_counts;
}

bool counts_agree(const CallRecord& from, int from_rank, const CallRecord& to, int to_rank) {
  if (!from.is_uneven() || !to.is_uneven()) return true;
  return count_at(from.input_counts, to_rank) == count_at(to.output_counts, from_rank);
}

std::uint64_t fingerprint_of(const CallRecord& call) {
  auto collective = is_message(call.collective) ? Collective::send : call.collective;
  bool own_counts = call.collective == Collective::all_to_all && call.is_uneven();
  auto hash = fingerprint_of(call.number, static_cast<int>(collective),
                             combines(collective) ? static_cast<int>(call.op) : -1,
                             has_root(collective) ? call.root : -1,
                             call.dtype ? static_cast<int>(*call.dtype) : -1, call.is_uneven(),
                             own_counts ? std::int64_t{0} : call.elements);
  hash = combine_fingerprints(hash, fingerprint(call.tag));
  if (own_counts) return hash;
  hash = combine_fingerprints(hash, fingerprint_of(std::span(std::as_const(call.input_counts))));
  return combine_fingerprints(hash, fingerprint_of(std::span(std::as_const(call.output_counts))));
}

std::string describe(const CallRecord& call, const GroupNames& group) {
  Notes notes;
  bool has_size = call.dtype && !(call.is_uneven() && call.collective == Collective::all_to_all);
  if (has_size)
    notes.push_back(format_bytes(call.elements * static_cast<std::int64_t>(bytes_of(*call.dtype))));
  return described(words_of(call), std::move(notes), group);
}

std::string describe_due(const CallRecord& call, const GroupNames& group) {
  if (call.collective == Collective::send) return "recv for " + describe(call, group);
  if (call.collective == Collective::recv) return "send for " + describe(call, group);
  return describe(call, group);
}

std::string describe_fully(const CallRecord& call, const GroupNames& group) {
  return describe_fully(words_of(call), group);
}
std::string describe_fully(const CallWords& call, const GroupNames& group) {
  return described_fully(call, {}, group);
}

std::string describe_difference(const CallRecord& one, int rank, const CallRecord& other,
                                int other_rank, const GroupNames& group) {
  if (other_rank < rank) return describe_difference(other, other_rank, one, rank, group);
  const auto words = [&group](const CallRecord& call, const CallRecord& than, int than_rank) {
    const auto counts = counts_that_differ(call, than, than_rank, group);
    return described_fully(words_of(call), counts, group);
  };
  return formatted("{} called {} where {} called {}", group.rank(rank),
                   words(one, other, other_rank), group.rank(other_rank), words(other, one, rank));
}

// COLLECTIVE OP ROOT DTYPE ELEMENTS NUMBER LINE, then the counts, each list after its length, FILE,
// and the tag to the end of the line. DTYPE is -1 if the call has no dtype.
std::string written(const CallRecord& call) {
  return formatted("{} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(call.collective),
                   static_cast<int>(call.op), call.root,
                   call.dtype ? static_cast<int>(*call.dtype) : -1, call.elements, call.number,
                   call.line, written(call.input_counts), written(call.output_counts),
                   plain(call.file, false), plain(call.tag, true));
}

std::optional<CallRecord> read_call(std::string_view text) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t most_int = std::numeric_limits<int>::max();
  WordReader words(text);
  CallRecord call;
  call.collective = static_cast<Collective>(words.number(0, static_cast<int>(Collective::recv)));
  call.op = static_cast<Op>(words.number(0, static_cast<int>(Op::bxor)));
  call.root = static_cast<int>(words.number(-1, most_int));
  auto dtype = words.number(-1, static_cast<std::int64_t>(dtype_count) - 1);
  if (dtype >= 0) call.dtype = static_cast<DType>(dtype);
  call.elements = words.number(0, most / 16);  // so that the number of bytes fits, too
  call.number = static_cast<std::uint64_t>(words.number(0, most));
  call.line = static_cast<std::uint32_t>(words.number(0, most_int));
  call.input_counts = read_counts(words);
  call.output_counts = read_counts(words);
  call.file = words.next();
  call.tag = words.rest();
  return words.is_good() ? std::optional(std::move(call)) : std::nullopt;
}

}  // namespace lockstep
