#include "comm/engines/shm/operation.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/engines/shm/plan.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace lockstep::shm {
namespace {

std::int64_t count_of(const Posting& posting, int members) {
  auto input = [&] { return elements_in(posting.input.bytes, posting.dtype); };
  auto output = [&] { return elements_in(posting.output.bytes, posting.dtype); };
  bool uneven = posting.is_uneven();
  switch (posting.collective) {
    case Collective::barrier:
      return 0;
    case Collective::all_gather:
      return uneven ? output() : input();
    case Collective::reduce_scatter:
      return uneven ? input() : output();
    case Collective::all_to_all:
      return uneven ? 0 : input() / members;
    case Collective::scatter:
    case Collective::recv:
      return output();
    default:
      return input();
  }
}

// Whether a call of so many elements is small enough to be carried.
bool fits_slot(const Posting& posting, std::int64_t count, int members, std::size_t carried_bytes) {
  if (posting.is_uneven() || posting.collective == Collective::barrier) return false;
  auto bytes = static_cast<std::size_t>(count) * bytes_of(posting.dtype);
  return bytes * (gives_each_its_part(posting.collective) ? members : 1) <= carried_bytes;
}

// Nowhere for a buffer that must be staged.
Location find(const Peers& peers, Buffer buffer) {
  return buffer.bytes == 0 ? Location() : peers.locate(buffer.data, buffer.bytes);
}

}  // namespace

DataPath choose_path(const Peers& peers, const Posting& posting, int members, int me,
                     std::size_t carried_bytes) {
  DataPath path{.count = count_of(posting, members),
                .reads = reads_input(posting.collective, me, posting.root),
                .writes = writes_output(posting.collective, me, posting.root)};
  if (fits_slot(posting, path.count, members, carried_bytes)) {
    path.is_carried = true;
    path.keeps_own_part = path.reads && (posting.collective == Collective::all_to_all ||
                                         posting.collective == Collective::scatter);
    if (path.reads && !combines(posting.collective))
      path.input = peers.locate(posting.input.data, posting.input.bytes);
  } else {
    if (path.reads) path.input = find(peers, posting.input);
    bool in_place = path.reads && posting.input.data == posting.output.data &&
                    posting.input.bytes == posting.output.bytes;
    if (path.writes) path.output = in_place ? path.input : find(peers, posting.output);
  }
  return path;
}

namespace {

constexpr std::string_view for_a_copy =
    "; a tensor that was made before init(), or in memory of the caller's own, is copied there for "
    "the call: make it after init(), with LOCKSTEP_ARENA_TENSORS on, or wait for earlier "
    "operations first";

}  // namespace

Staged::Staged(const Peers& peers, Buffer input, Buffer output, const DataPath& path)
    : input_location_(path.input), output_location_(path.output), arena_(peers.arena().get()) {
  if (path.reads) input_ = input;
  if (path.writes) output_ = output;
  Arena& arena = *arena_;
  if (input_.bytes > 0 && !input_location_.is_somewhere()) {
    input_block_ = arena.allocate(input_.bytes, for_a_copy);
    std::memcpy(input_block_, input_.data, input_.bytes);
    input_location_ = peers.locate(input_block_, input_.bytes);
  }
  if (output_.bytes == 0 || output_location_.is_somewhere()) return;
  bool in_place = output_.data == input_.data && output_.bytes == input_.bytes;
  try {
    output_block_ = in_place ? input_block_ : arena.allocate(output_.bytes, for_a_copy);
  } catch (...) {
    release();
    throw;
  }
  output_location_ = peers.locate(output_block_, output_.bytes);
}

void Staged::carry(Buffer input, Buffer output, const DataPath& path) {
  release();
  input_ = path.reads ? input : Buffer();
  output_ = path.writes ? output : Buffer();
  input_location_ = path.input;
  output_location_ = Location();
  carried_ = true;
  keeps_own_part_ = path.keeps_own_part;
}

Staged& Staged::operator=(Staged&& other) noexcept {
  if (this == &other) return *this;
  release();
  input_ = other.input_;
  output_ = other.output_;
  input_location_ = other.input_location_;
  output_location_ = other.output_location_;
  carried_ = other.carried_;
  keeps_own_part_ = other.keeps_own_part_;
  arena_ = other.arena_;
  input_block_ = std::exchange(other.input_block_, nullptr);
  output_block_ = std::exchange(other.output_block_, nullptr);
  return *this;
}

void Staged::copy_out() {
  if (output_block_) std::memcpy(output_.data, output_block_, output_.bytes);
}

void Staged::release() {
  if (output_block_ && output_block_ != input_block_) arena_->free(output_block_);
  if (input_block_) arena_->free(input_block_);
  leak();
}

void Staged::leak() { input_block_ = output_block_ = nullptr; }

bool Staged::must_precede(const Later& later) const {
  bool reads_ours = overlap(output_, later.input);
  bool writes_output = overlap(output_, later.output);
  bool is_copied = (carried_ && !keeps_own_part_) || input_block_ != nullptr;
  if (later.same_channel && !keeps_own_part_)
    return delivers_late() ? reads_ours || writes_output : reads_ours && later.is_copied;
  return reads_ours || writes_output || (!is_copied && overlap(input_, later.output));
}

namespace {

constexpr std::int64_t whole_bytes = 16 << 10;  // less than this is not worth a second core
constexpr std::int64_t least_segment_bytes = 16 << 10;
constexpr std::int64_t most_segment_bytes = 256 << 10;
constexpr std::int64_t line_bytes = 64;

Cutting cutting_for(DType dtype) {
  auto element = static_cast<std::int64_t>(bytes_of(dtype));
  return {line_bytes / element, whole_bytes / element, least_segment_bytes / element,
          most_segment_bytes / element};
}

// From here on the data does not stay in the last cache anyway, and stores need not fetch their
// lines first. Not for results that replace inputs: those lines have just been loaded.
std::int64_t streaming_bytes() {
  static const std::int64_t bytes = std::max<std::int64_t>(sys::cache_sizes().level_3, 8 << 20);
  return bytes;
}

// Null stays null.
std::byte* at_element(std::byte* base, std::int64_t element, DType dtype) {
  return base ? base + static_cast<std::size_t>(element) * bytes_of(dtype) : nullptr;
}

// To several destinations in tiles that stay in the first cache from one copy to the next.
void copy(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool stream) {
  constexpr std::size_t tile_bytes = 16 << 10;
  const std::size_t tile = to.size() == 1 ? bytes : tile_bytes;
  for (std::size_t offset = 0; offset < bytes; offset += tile) {
    const std::size_t length = std::min(tile, bytes - offset);
    for (std::byte* each : to) kernels::copy_bytes(each + offset, from + offset, length, stream);
  }
}

[[noreturn]] void refuse_combination(const Posting& posting) {
  throw InvalidArgument(formatted("{}: {} has no meaning for {}", name_of(posting.collective),
                                  name_of(posting.op), name_of(posting.dtype)));
}

}  // namespace

void Operation::set_members(int members) {
  inputs_.resize(members);
  outputs_.resize(members);
  origins_.resize(members);
}

Fingerprint Operation::agree(const Posting& posting, int members, std::int64_t count) {
  bool message = posting.collective == Collective::send || posting.collective == Collective::recv;
  bool uneven = posting.is_uneven();
  uneven_exchange_ = uneven && posting.collective == Collective::all_to_all;
  counts_.clear();
  if (uneven && !uneven_exchange_) {
    auto given = posting.input_counts.empty() ? posting.output_counts : posting.input_counts;
    counts_.assign(given.begin(), given.end());
  }
  shape_ = {posting.collective, members, message ? 0 : posting.root, count, counts_, {}};
  Agreement agreement{posting.collective, posting.op, posting.dtype,
                      shape_.root,        uneven,     static_cast<std::uint64_t>(shape_.count)};
  std::uint64_t names = names_of(posting.tag);
  if (!counts_.empty())
    names = combine_fingerprints(names, fingerprint_of(std::span<const std::int64_t>(counts_)));
  return agreement.fingerprint(names);
}

void Operation::fill(const Peers& peers, int me, std::uint64_t sequence, const DataPath& path,
                     Posting& posting) {
  auto members = static_cast<int>(inputs_.size());
  if (combines(posting.collective) && !kernels::can_combine(posting.dtype, posting.op))
    refuse_combination(posting);
  print_ = agree(posting, members, path.count);
  carried_ = path.is_carried;
  if (carried_)
    staged_.carry(posting.input, posting.output, path);
  else
    staged_ = Staged(peers, posting.input, posting.output, path);
  me_ = me;
  sequence_ = sequence;
  collective_ = posting.collective;
  op_ = posting.op;
  dtype_ = posting.dtype;
  timeout_.store(posting.timeout.count(), std::memory_order_relaxed);
  keep_input_ = std::move(posting.keep_input);
  keep_output_ = std::move(posting.keep_output);
  seen_.reset();
  seen_.set(me);
  unseen_ = members - 1;
  if (carried_)
    std::ranges::fill(outputs_, nullptr);
  else
    note(peers, me, staged_.input(), staged_.output());
  mismatched_ = -1;
  planned_ = false;
}

void Operation::publish(const Peers& peers, const ChannelMemory& memory, int me,
                        const Posting& posting) {
  if (posting.is_uneven()) publish_counts(peers, memory, me, posting);
  if (carried_) {
    inputs_[me] = memory.carried(me, sequence_);
    if (!combines(collective_)) origins_[me] = staged_.own_input().data;
    carry_input();
  }
  write(memory.slot(me, sequence_), sequence_, {print_, staged_.input(), staged_.output()},
        {posting.collective, posting.tag, posting.where}, file_in_slot_);
}

// This rank's own part of what each gets its part of is read where it lies.
void Operation::carry_input() const {
  const Buffer input = staged_.own_input();
  if (input.bytes == 0) return;
  std::byte* carried = inputs_[static_cast<std::size_t>(me_)];
  const std::size_t part = staged_.keeps_own_part() ? input.bytes / inputs_.size() : 0;
  const std::size_t begin = part * static_cast<std::size_t>(me_);
  std::memcpy(carried, input.data, begin);
  std::memcpy(carried + begin + part, input.data + begin + part, input.bytes - begin - part);
}

// A member may still read those of the operation that stood here, which others have completed.
void Operation::publish_counts(const Peers& peers, const ChannelMemory& memory, int me,
                               const Posting& posting) const {
  begin_write(memory.slot(me, sequence_), sequence_);
  auto counts = memory.counts(peers, me);
  int other = 0;
  for (auto count : posting.input_counts)
    counts.sends(other++, sequence_).store(count, std::memory_order_relaxed);
  other = 0;
  for (auto count : posting.output_counts)
    counts.expects(other++, sequence_).store(count, std::memory_order_relaxed);
}

void Operation::note(const Peers& peers, int member, Location input, Location output) {
  outputs_[member] = peers.address(output);
  inputs_[member] = peers.address(input);
}

// Its lines are in that member's cache; they come over while this rank still looks and plans.
void Operation::note_carried(int member, std::byte* input, std::byte* origin) {
  inputs_[member] = input;
  origins_[member] = origin;
  std::size_t output = staged_.own_output().bytes;
  if (output == 0) return;
  std::size_t own_input = staged_.own_input().bytes;
  std::size_t begin = 0;
  std::size_t bytes = own_input > 0 ? own_input : output;  // of a peer that sends as much, or to me
  if (gives_each_its_part(collective_)) {
    bytes = collective_ == Collective::all_to_all ? output / inputs_.size() : output;
    begin = bytes * static_cast<std::size_t>(me_);
  }
  for (std::size_t i = 0; i < bytes; i += line_bytes) __builtin_prefetch(input + begin + i);
}

PollResult Operation::look(const Peers& peers, const ChannelMemory& memory) {
  for (int member = 0; unseen_ > 0 && member < memory.members(); ++member) {
    if (seen_.test(member)) continue;
    Descriptor descriptor;
    Posted posted = read(memory.slot(member, sequence_), sequence_, descriptor);
    if (posted == Posted::complete) return PollResult::complete;
    if (posted == Posted::not_yet) continue;
    if (descriptor.print != print_) {
      mismatched_ = member;
      return PollResult::mismatch;
    }
    seen_.set(member);
    --unseen_;
    if (carried_)
      note_carried(member, memory.carried(member, sequence_),
                   combines(collective_) ? nullptr : peers.address(descriptor.input));
    else
      note(peers, member, descriptor.input, descriptor.output);
  }
  return unseen_ > 0 ? PollResult::waiting : make_plan(peers, memory);
}

bool Operation::read_exchange(const Peers& peers, const ChannelMemory& memory) {
  int members = memory.members();
  std::vector<std::int64_t> matrix(static_cast<std::size_t>(members) * members);
  std::vector<CountsMemory> counts;
  for (int member = 0; member < members; ++member) counts.push_back(memory.counts(peers, member));
  bool agree = true;
  for (int from = 0; from < members; ++from) {
    for (int to = 0; to < members; ++to) {
      auto sent = counts[from].sends(to, sequence_).load(std::memory_order_relaxed);
      if (sent != counts[to].expects(from, sequence_).load(std::memory_order_relaxed))
        agree = false;
      matrix[from * members + to] = sent;
    }
  }
  exchange_ = Exchange(members, matrix);
  return agree;
}

PollResult Operation::make_plan(const Peers& peers, const ChannelMemory& memory) {
  if (uneven_exchange_) {
    bool agree = read_exchange(peers, memory);
    std::atomic_thread_fence(std::memory_order_acquire);
    for (int member = 0; member < memory.members(); ++member) {
      if (memory.slot(member, sequence_).stamp.load(std::memory_order_acquire) != sequence_ * 2)
        return PollResult::complete;
    }
    if (!agree) return PollResult::mismatch;
    shape_.exchange = &exchange_;
  }
  planned_ = true;
  if (carried_) {
    if (!combines(collective_)) plan_ = Plan(shape_);
    outputs_[me_] = staged_.own_output().data;
    return PollResult::ready;
  }
  plan_ = Plan(shape_, cutting_for(dtype_));
  if (moves_nothing()) plan_ = Plan();
  std::int64_t elements = 0;
  for (int part = 0; part < plan_.parts(); ++part) elements += plan_.part_length(part);
  bool in_place = inputs_ == outputs_;
  stream_ =
      !in_place && elements * static_cast<std::int64_t>(bytes_of(dtype_)) * 2 > streaming_bytes();
  return PollResult::ready;
}

// Everything is where it should be: pieces of a tensor that all ranks share.
bool Operation::moves_nothing() const {
  if (combines(collective_)) return false;
  bool nothing = true;
  for (int part = 0; part < plan_.parts() && nothing; ++part) {
    plan_.moves(part, {0, plan_.part_length(part)}, [&](const Move& move) {
      const std::byte* from = at_element(inputs_[move.source], move.source_offset, dtype_);
      for (int member = move.first(); member < move.end(shape_.size) && nothing; ++member) {
        const std::byte* to = at_element(outputs_[member], move.destination_offset, dtype_);
        nothing = to == nullptr || to == from;
      }
    });
  }
  return nothing;
}

void Operation::run(int part, std::int64_t index) const {
  if (!plan_.is_single()) return run_part(part, index);
  for (int each = 0; each < plan_.parts(); ++each) run_part(each, 0);
}

void Operation::run_carried() const {
  if (staged_.own_output().bytes == 0) return;
  if (!combines(collective_)) return move_carried();
  std::array<const std::byte*, kernels::max_ranks> inputs;
  std::int64_t first = collective_ == Collective::reduce_scatter ? shape_.count * me_ : 0;
  for (std::size_t member = 0; member < inputs_.size(); ++member)
    inputs[member] = at_element(inputs_[member], first, dtype_);
  std::byte* output = outputs_[me_];
  kernels::combine(
      {dtype_, op_, std::span(inputs.data(), inputs_.size()), std::span(&output, 1), shape_.count});
}

void Operation::move_carried() const {
  bool mine_only = gives_each_its_part(collective_);
  for (int part = mine_only ? me_ : 0; part < (mine_only ? me_ + 1 : plan_.parts()); ++part) {
    plan_.moves(part, {0, plan_.part_length(part)}, [&](const Move& move) {
      if (me_ < move.first() || me_ >= move.end(shape_.size)) return;
      std::byte* to = at_element(outputs_[me_], move.destination_offset, dtype_);
      if (to == at_element(origins_[move.source], move.source_offset, dtype_)) return;
      const auto& carried = move.source == me_ && staged_.keeps_own_part() ? origins_ : inputs_;
      const std::byte* from = at_element(carried[move.source], move.source_offset, dtype_);
      std::memcpy(to, from, static_cast<std::size_t>(move.length) * bytes_of(dtype_));
    });
  }
}

void Operation::run_part(int part, std::int64_t index) const {
  const Range range = plan_.segment(part, index);
  combines(collective_) ? combine_part(part, range) : move_part(part, range);
}

void Operation::combine_part(int part, Range range) const {
  std::array<const std::byte*, kernels::max_ranks> inputs;
  std::array<std::byte*, kernels::max_ranks> outputs;
  std::size_t written = 0;
  const auto input = plan_.combine_input_offset(part) + range.begin;
  const auto output = plan_.combine_output_offset(part) + range.begin;
  for (std::size_t member = 0; member < inputs_.size(); ++member) {
    inputs[member] = at_element(inputs_[member], input, dtype_);
    bool mine = collective_ != Collective::reduce_scatter || static_cast<int>(member) == part;
    if (mine && outputs_[member]) outputs[written++] = at_element(outputs_[member], output, dtype_);
  }
  if (written > 0)
    kernels::combine({dtype_, op_, std::span(inputs.data(), inputs_.size()),
                      std::span(outputs.data(), written), range.length(), stream_});
}

void Operation::move_part(int part, Range range) const {
  plan_.moves(part, range, [&](const Move& move) {
    std::array<std::byte*, kernels::max_ranks> destinations;
    std::size_t written = 0;
    const std::byte* from = at_element(inputs_[move.source], move.source_offset, dtype_);
    for (int member = move.first(); member < move.end(shape_.size); ++member) {
      std::byte* to = at_element(outputs_[member], move.destination_offset, dtype_);
      const bool is_written = written > 0 && to == destinations[0];  // ranks may share a tensor
      if (to && to != from && !is_written) destinations[written++] = to;
    }
    if (written == 0) return;
    const auto bytes = static_cast<std::size_t>(move.length) * bytes_of(dtype_);
    copy(std::span(destinations.data(), written), from, bytes, stream_);
  });
}

void Operation::release() {
  staged_.release();
  keep_input_.reset();
  keep_output_.reset();
  if (uneven_exchange_) exchange_ = {};  // as many words as pairs of ranks
}

void Operation::leak() {
  staged_.leak();
  keep_input_.leak();
  keep_output_.leak();
}

}  // namespace lockstep::shm
