#include "optim/run.h"

#include "optim/kept.h"
#include "optim/threads.h"

#include <lockstep/base/fingerprint.h>

#include <algorithm>
#include <cmath>

namespace lockstep::optim {
namespace {

constexpr std::int64_t piece_elements = 1 << 16;  // long enough that handing it out costs nothing
static_assert(piece_elements % block_elements == 0 && Tile::elements % block_elements == 0);

std::int64_t bytes_of(c10::ScalarType dtype) { return dtype == c10::ScalarType::Float ? 4 : 2; }

std::int64_t bytes_of(StateFormat format) {
  return format == StateFormat::float32 ? 4 : format == StateFormat::bfloat16 ? 2 : 1;
}

KeptMemory memory_of(const KeptTensor& kept) {
  if (kept.values == nullptr) return {};
  KeptMemory memory{.data = static_cast<std::byte*>(kept.values->mutable_data_ptr()),
                    .format = format_of(*kept.values),
                    .codes = kept.codes};
  if (memory.format == StateFormat::blocks) memory.scales = kept.scales->mutable_data_ptr<float>();
  return memory;
}

Run run_of(const Slot& slot) {
  Run run{.count = slot.dense.numel(),
          .age = slot.age,
          .first = slot.first,
          .place = slot.place,
          .dtype = slot.dense.scalar_type(),
          .gradient_dtype = slot.gradient.scalar_type(),
          .parameter = static_cast<std::byte*>(slot.dense.mutable_data_ptr()),
          .source = slot.source.get(),
          .source_begin = slot.source ? slot.gradient.storage_offset() : 0};
  if (!slot.source) run.gradient = static_cast<const std::byte*>(slot.gradient.const_data_ptr());
  if (slot.has_16_bits()) run.master = slot.master->mutable_data_ptr<float>();
  for (std::size_t i = 0; i < run.kept.size(); ++i) run.kept[i] = memory_of(slot.kept[i]);
  return run;
}

bool goes_on(const KeptMemory& first, const KeptMemory& second, std::int64_t count) {
  if (first.data == nullptr || second.data == nullptr) return first.data == second.data;
  if (first.format != second.format) return false;
  if (second.data != first.data + count * bytes_of(first.format)) return false;
  if (first.format != StateFormat::blocks) return true;
  return count % block_elements == 0 && second.scales == first.scales + count / block_elements;
}

bool goes_on(const Run& first, const Run& second) {
  if (first.dtype != second.dtype || first.gradient_dtype != second.gradient_dtype) return false;
  if (first.age != second.age || first.first != second.first) return false;
  if (second.place != first.place + first.count) return false;
  if (second.parameter != first.parameter + first.count * bytes_of(first.dtype)) return false;
  if (first.source != second.source) return false;
  if (first.source != nullptr && second.source_begin != first.source_begin + first.count)
    return false;
  if (first.source == nullptr &&
      second.gradient != first.gradient + first.count * bytes_of(first.gradient_dtype))
    return false;
  if (first.master != nullptr && second.master != first.master + first.count) return false;
  for (std::size_t i = 0; i < first.kept.size(); ++i)
    if (!goes_on(first.kept[i], second.kept[i], first.count)) return false;
  return true;
}

void widen(c10::ScalarType dtype, const std::byte* from, float* to, std::int64_t count) {
  auto* bits = reinterpret_cast<const std::uint16_t*>(from);
  dtype == c10::ScalarType::Half ? widen_half(bits, to, count) : widen_bfloat16(bits, to, count);
}

float* open(const KeptMemory& kept, std::int64_t begin, std::int64_t count, float* buffer) {
  const std::byte* data = kept.data + begin * bytes_of(kept.format);
  switch (kept.format) {
    case StateFormat::float32:
      return reinterpret_cast<float*>(kept.data) + begin;
    case StateFormat::bfloat16:
      widen_bfloat16(reinterpret_cast<const std::uint16_t*>(data), buffer, count);
      break;
    case StateFormat::blocks:
      read_blocks(kept.codes, reinterpret_cast<const std::uint8_t*>(data),
                  kept.scales + begin / block_elements, buffer, count);
  }
  return buffer;
}

void close(const KeptMemory& kept, std::int64_t begin, std::int64_t count, const float* buffer,
           const Dice& dice) {
  std::byte* data = kept.data + begin * bytes_of(kept.format);
  if (kept.format == StateFormat::bfloat16)
    narrow_bfloat16(buffer, reinterpret_cast<std::uint16_t*>(data), count, dice);
  if (kept.format == StateFormat::blocks)
    write_blocks(kept.codes, buffer, reinterpret_cast<std::uint8_t*>(data),
                 kept.scales + begin / block_elements, count, &dice);
}

}  // namespace

bool Run::is_plain() const {
  return master == nullptr && std::all_of(kept.begin(), kept.end(), [](const KeptMemory& memory) {
           return memory.format == StateFormat::float32;
         });
}

double Run::bytes_an_element() const {
  double bytes = 2.0 * static_cast<double>(bytes_of(dtype)) + (master != nullptr ? 8 : 0);
  bytes += static_cast<double>(source != nullptr ? source->bytes_an_element()
                                                 : bytes_of(gradient_dtype));
  for (const KeptMemory& memory : kept) {
    if (memory.data == nullptr) continue;
    bytes += 2.0 * static_cast<double>(bytes_of(memory.format));
    if (memory.scales != nullptr) bytes += 2.0 * sizeof(float) / block_elements;
  }
  return bytes;
}

std::vector<Run> make_runs(const std::vector<Slot>& slots) {
  std::vector<Run> runs;
  for (const Slot& slot : slots) {
    if (!slot.is_for_kernel() || slot.dense.numel() == 0) continue;
    Run run = run_of(slot);
    if (!runs.empty() && goes_on(runs.back(), run))
      runs.back().count += run.count;
    else
      runs.push_back(run);
  }
  return runs;
}

void count_bytes(std::span<const Run> runs, const GroupStep& step) {
  if (step.bytes_moved == nullptr) return;
  for (const Run& run : runs)
    *step.bytes_moved += std::llround(run.bytes_an_element() * static_cast<double>(run.count));
}

void for_each_piece(std::span<const Run> runs,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& update) {
  struct Piece {
    std::size_t run;
    std::int64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::int64_t begin = 0; begin < runs[i].count; begin += piece_elements)
      pieces.push_back({i, begin, std::min(begin + piece_elements, runs[i].count)});
  for_each_in_parallel(
      pieces.size(), [&](std::size_t i) { update(pieces[i].run, pieces[i].begin, pieces[i].end); });
}

std::uint32_t dice_key(std::uint64_t seed, std::int64_t group, std::int64_t age) {
  std::uint64_t step = static_cast<std::uint64_t>(age + (group << 40));
  return static_cast<std::uint32_t>(mix_bits(seed + 0x9e3779b97f4a7c15U * step) >> 16);
}

Tile::Tile(const Run& run, std::int64_t begin, std::int64_t count, std::uint32_t key,
           StateFormat direct)
    : run_(run), begin_(begin), count_(count), key_(key), direct_(direct) {
  take_gradient();
  for (std::size_t i = 0; i < kept_.size(); ++i)
    if (is_open(i))
      kept_[i] = open(run.kept[i], begin, count, kept_buffers_[std::min<std::size_t>(i, 1)].data());
  if (run.master == nullptr) return;
  auto* bits = reinterpret_cast<const std::uint16_t*>(run.parameter + begin * 2);
  run.dtype == c10::ScalarType::Half ? follow_half(bits, run.master + begin, count)
                                     : follow_bfloat16(bits, run.master + begin, count);
}

void Tile::take_gradient() {
  bool is_float = run_.gradient_dtype == c10::ScalarType::Float;
  std::array<std::uint16_t, elements> narrow;
  void* to = is_float ? static_cast<void*>(gradient_buffer_.data()) : narrow.data();
  const auto* gradient = static_cast<const std::byte*>(to);
  if (run_.source != nullptr)
    run_.source->read(run_.source_begin + begin_, count_, to);
  else
    gradient = run_.gradient + begin_ * bytes_of(run_.gradient_dtype);
  gradient_ = is_float ? reinterpret_cast<const float*>(gradient) : gradient_buffer_.data();
  if (!is_float) widen(run_.gradient_dtype, gradient, gradient_buffer_.data(), count_);
}

float* Tile::parameter() const {
  return run_.master != nullptr ? run_.master + begin_
                                : reinterpret_cast<float*>(run_.parameter) + begin_;
}

void Tile::close() {
  auto place = static_cast<std::uint32_t>(run_.place + begin_);
  for (int i = 0; i < 2; ++i)
    if (is_open(i))
      optim::close(run_.kept[i], begin_, count_, kept_[i],
                   {.key = key_, .first = place, .stream = i});
  if (run_.master == nullptr) return;
  auto* bits = reinterpret_cast<std::uint16_t*>(run_.parameter + begin_ * 2);
  run_.dtype == c10::ScalarType::Half ? narrow_half(run_.master + begin_, bits, count_)
                                      : narrow_bfloat16(run_.master + begin_, bits, count_);
}

}  // namespace lockstep::optim
