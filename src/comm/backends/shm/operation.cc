#include "comm/backends/shm/operation.h"

#include "base/format.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace lockstep::shm {
namespace {

// Returns true if the input of a call is small enough for its slot.
bool fits_slot(const CallInfo& info, const ChannelMemory& memory) {
  if (info.is_uneven() || info.collective == Collective::barrier) return false;
  auto bytes = static_cast<std::size_t>(count_of(info, memory.members())) * bytes_of(*info.dtype);
  return bytes * (gives_each_its_part(info.collective) ? memory.members() : 1) <=
         memory.inline_bytes();
}

// Returns a default RemoteAddress for a buffer that must be staged.
RemoteAddress find(const PeerMappings& peers, Buffer buffer) {
  return buffer.bytes == 0 ? RemoteAddress() : peers.locate(buffer.data, buffer.bytes);
}

constexpr std::string_view for_a_copy =
    "; a tensor that was made before init(), or in memory of the caller's own, is copied there for "
    "the call: make it after init(), with LOCKSTEP_ARENA_TENSORS on, or wait for earlier "
    "operations first";

}  // namespace

Operands Operands::place(const PeerMappings& peers, const ChannelMemory& memory, int me,
                         const CallInfo& info, CallBuffers&& buffers) {
  Operands placed;
  bool reads = reads_input(info.collective, me, info.root);
  if (reads) placed.input_ = buffers.input;
  if (writes_output(info.collective, me, info.root)) placed.output_ = buffers.output;
  placed.keep_input_ = std::move(buffers.keep_input);
  placed.keep_output_ = std::move(buffers.keep_output);
  placed.inline_ = fits_slot(info, memory);
  if (placed.inline_) {
    if (reads && !combines(info.collective))
      placed.input_location_ = peers.locate(placed.input_.data, placed.input_.bytes);
  } else {
    placed.input_location_ = find(peers, placed.input_);
    placed.output_location_ =
        placed.is_in_place() ? placed.input_location_ : find(peers, placed.output_);
  }
  return placed;
}

void Operands::stage(const PeerMappings& peers) {
  if (inline_) return;
  Arena& arena = *peers.arena();
  auto allocate = [&arena](std::size_t bytes) {
    return ArenaBlock(arena.allocate(bytes, for_a_copy), {&arena});
  };
  if (input_.bytes > 0 && !input_location_.is_somewhere()) {
    input_block_ = allocate(input_.bytes);
    std::memcpy(input_block_.get(), input_.data, input_.bytes);
    input_location_ = peers.locate(input_block_.get(), input_.bytes);
  }
  if (output_.bytes == 0 || output_location_.is_somewhere()) return;
  if (!is_in_place()) output_block_ = allocate(output_.bytes);
  output_location_ = peers.locate(staged_output(), output_.bytes);
}

void Operands::deliver() {
  if (const std::byte* staged = staged_output()) std::memcpy(output_.data, staged, output_.bytes);
}

void Operands::release() {
  output_block_.reset();
  input_block_.reset();
  keep_input_.reset();
  keep_output_.reset();
}

void Operands::leak() {
  (void)output_block_.release();
  (void)input_block_.release();
  keep_input_.leak();
  keep_output_.leak();
}

bool Operands::must_precede(const Operands& later, bool same_channel) const {
  bool reads_ours = overlap(output_, later.input_);
  bool writes_output = overlap(output_, later.output_);
  bool is_copied = inline_ || input_block_ != nullptr;
  bool later_copies = later.inline_ || !later.input_location_.is_somewhere();
  bool delivers_late = inline_ || staged_output() != nullptr;  // by the owner, maybe after peers
  if (same_channel) return delivers_late ? reads_ours || writes_output : reads_ours && later_copies;
  return reads_ours || writes_output || (!is_copied && overlap(input_, later.output_));
}

namespace {

constexpr std::int64_t whole_bytes = 16 << 10;  // smaller operations are not worth a second core
constexpr std::int64_t least_segment_bytes = 16 << 10;
constexpr std::int64_t most_segment_bytes = 256 << 10;
constexpr std::int64_t line_bytes = 64;

Cutting cutting_for(DType dtype) {
  auto element = static_cast<std::int64_t>(bytes_of(dtype));
  return {line_bytes / element, whole_bytes / element, least_segment_bytes / element,
          most_segment_bytes / element};
}

// Returns the size above which data does not fit into the last-level cache, so that non-temporal
// stores are faster, except in place: those cache lines have just been loaded.
std::int64_t streaming_bytes() {
  static const std::int64_t bytes = std::max<std::int64_t>(sys::level_3_cache_bytes(), 8 << 20);
  return bytes;
}

// Returns null for a null base.
std::byte* at_element(std::byte* base, std::int64_t element, DType dtype) {
  return base ? base + static_cast<std::size_t>(element) * bytes_of(dtype) : nullptr;
}

// Copies to several destinations, in tiles that stay in the L1 cache between the copies.
void copy(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool stream) {
  constexpr std::size_t tile_bytes = 16 << 10;
  const std::size_t tile = to.size() == 1 ? bytes : tile_bytes;
  for (std::size_t offset = 0; offset < bytes; offset += tile) {
    const std::size_t length = std::min(tile, bytes - offset);
    for (std::byte* each : to) kernels::copy_bytes(each + offset, from + offset, length, stream);
  }
}

void check_combination(const CallInfo& info) {
  if (!combines(info.collective) || kernels::can_combine(*info.dtype, info.op)) return;
  throw InvalidArgument(formatted("{}: {} is not defined for {}", name_of(info.collective),
                                  name_of(info.op), name_of(*info.dtype)));
}

}  // namespace

void Operation::set_members(int members) {
  inputs_.resize(members);
  outputs_.resize(members);
  origins_.resize(members);
}

void Operation::agree(const CallInfo& info) {
  bool is_uneven = info.is_uneven();
  uneven_exchange_ = is_uneven && info.collective == Collective::all_to_all;
  counts_.clear();
  if (is_uneven && !uneven_exchange_) {
    auto given = info.input_counts.empty() ? info.output_counts : info.input_counts;
    counts_.assign(given.begin(), given.end());
  }
  const auto members = static_cast<int>(inputs_.size());
  const int root = is_message(info.collective) ? 0 : info.root;
  shape_ = {info.collective, members, root, count_of(info, members), counts_, {}};
  print_ = Fingerprint::of(info, shape_.count, counts_);
}

void Operation::fill(const PeerMappings& peers, int me, const CallInfo& info, Operands&& operands) {
  check_combination(info);
  const Buffer input = operands.input();
  if (operands.is_inline()) inline_copy_.assign(input.data, input.data + input.bytes);
  agree(info);
  operands_ = std::move(operands);
  me_ = me;
  sequence_ = info.id.number;
  collective_ = info.collective;
  op_ = info.op;
  dtype_ = info.dtype.value_or(DType::uint8);
  timeout_.store(info.timeout.count(), std::memory_order_relaxed);
  seen_.reset();
  seen_.set(me);
  unseen_ = shape_.size - 1;
  if (is_inline())
    std::ranges::fill(outputs_, nullptr);
  else
    note(peers, me, operands_.input_location(), operands_.output_location());
  mismatched_ = -1;
  planned_ = false;
}

void Operation::publish(const PeerMappings& peers, const ChannelMemory& memory,
                        const CallInfo& info) {
  if (info.is_uneven()) publish_counts(peers, memory, info);
  if (is_inline()) {
    inputs_[me_] = inline_copy_.data();
    if (!combines(collective_)) origins_[me_] = operands_.input().data;
    write_inline_input(memory.inline_input(me_, sequence_));
  }
  write(memory.slot(me_, sequence_), sequence_,
        {print_, operands_.input_location(), operands_.output_location()}, info, file_in_slot_);
}

// Copies the input to the slot, except for a part that is for this rank alone.
void Operation::write_inline_input(std::byte* slot_input) const {
  const auto& input = inline_copy_;
  const std::size_t part = gives_each_its_part(collective_) ? input.size() / inputs_.size() : 0;
  const std::size_t begin = part * static_cast<std::size_t>(me_);
  std::copy_n(input.data(), begin, slot_input);
  std::copy(input.begin() + begin + part, input.end(), slot_input + begin + part);
}

// begin_write() first: a member may still be reading the counts of the previous operation in this
// slot.
void Operation::publish_counts(const PeerMappings& peers, const ChannelMemory& memory,
                               const CallInfo& info) const {
  begin_write(memory.slot(me_, sequence_), sequence_);
  auto counts = memory.counts(peers, me_);
  int other = 0;
  for (auto count : info.input_counts)
    counts.sends(other++, sequence_).store(count, std::memory_order_relaxed);
  other = 0;
  for (auto count : info.output_counts)
    counts.expects(other++, sequence_).store(count, std::memory_order_relaxed);
}

void Operation::note(const PeerMappings& peers, int member, RemoteAddress input,
                     RemoteAddress output) {
  outputs_[member] = peers.address(output);
  inputs_[member] = peers.address(input);
}

// Prefetches the input from that member's cache while this rank still polls and plans.
void Operation::note_inline(int member, std::byte* input, std::byte* origin) {
  inputs_[member] = input;
  origins_[member] = origin;
  std::size_t output = operands_.output().bytes;
  if (output == 0) return;
  std::size_t own_input = operands_.input().bytes;
  std::size_t begin = 0;
  std::size_t bytes = own_input > 0 ? own_input : output;  // that a peer sends
  if (gives_each_its_part(collective_)) {
    bytes = collective_ == Collective::all_to_all ? output / inputs_.size() : output;
    begin = bytes * static_cast<std::size_t>(me_);
  }
  for (std::size_t i = 0; i < bytes; i += line_bytes) __builtin_prefetch(input + begin + i);
}

PollResult Operation::poll(const PeerMappings& peers, const ChannelMemory& memory) {
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
    if (is_inline())
      note_inline(member, memory.inline_input(member, sequence_),
                  combines(collective_) ? nullptr : peers.address(descriptor.input));
    else
      note(peers, member, descriptor.input, descriptor.output);
  }
  return unseen_ > 0 ? PollResult::waiting : make_plan(peers, memory);
}

bool Operation::read_exchange(const PeerMappings& peers, const ChannelMemory& memory) {
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
  exchange_ = AllToAllCounts(members, matrix);
  return agree;
}

PollResult Operation::make_plan(const PeerMappings& peers, const ChannelMemory& memory) {
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
  if (is_inline()) {
    if (!combines(collective_)) plan_ = Plan(shape_);
    outputs_[me_] = operands_.output().data;
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

// Returns true if all data is already in place, because the buffers are pieces of a tensor that all
// ranks share.
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

void Operation::run_inline() const {
  if (operands_.output().bytes == 0) return;
  if (!combines(collective_)) return move_inline();
  std::array<const std::byte*, kernels::max_ranks> inputs;
  std::int64_t first = collective_ == Collective::reduce_scatter ? shape_.count * me_ : 0;
  for (std::size_t member = 0; member < inputs_.size(); ++member)
    inputs[member] = at_element(inputs_[member], first, dtype_);
  std::byte* output = outputs_[me_];
  kernels::combine(
      {dtype_, op_, std::span(inputs.data(), inputs_.size()), std::span(&output, 1), shape_.count});
}

void Operation::move_inline() const {
  bool mine_only = gives_each_its_part(collective_);
  for (int part = mine_only ? me_ : 0; part < (mine_only ? me_ + 1 : plan_.parts()); ++part) {
    plan_.moves(part, {0, plan_.part_length(part)}, [&](const Move& move) {
      if (me_ < move.first() || me_ >= move.end(shape_.size)) return;
      std::byte* to = at_element(outputs_[me_], move.destination_offset, dtype_);
      if (to == at_element(origins_[move.source], move.source_offset, dtype_)) return;
      const std::byte* from = at_element(inputs_[move.source], move.source_offset, dtype_);
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
  operands_.release();
  if (uneven_exchange_) exchange_ = {};  // large: one word per pair of ranks
}

}  // namespace lockstep::shm
