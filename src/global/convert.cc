#include "global/convert.h"

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "global/mesh_context.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

namespace lockstep::global {
namespace {

using Counts = std::vector<std::int64_t>;

constexpr std::string_view tag = "global tensor";

// Blocks until `work` completes, and adds the time to seconds_waited.
void wait(MeshContext& context, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work.wait();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  std::lock_guard lock(context.traffic_mutex);
  context.seconds_waited += waited.count();
}

std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.contiguous().view({-1}); }

at::Tensor joined_flat(const std::vector<at::Tensor>& pieces) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& piece : pieces) all.push_back(flat(piece));
  return at::cat(all);
}

// Converts one tensor along the axes of its mesh.
class Conversion {
 public:
  Conversion(at::Tensor local, const Spec& spec)
      : context_(*spec.context),
        sizes_(spec.sizes),
        now_(spec.placements),
        local_(std::move(local)) {}

  at::Tensor run(std::span<const Placement> to) {
    int axes = static_cast<int>(now_.size());
    for (int axis = 0; axis < axes; ++axis)
      if (now(axis).is_partial() && !to[static_cast<std::size_t>(axis)].is_shard() &&
          now(axis) != to[static_cast<std::size_t>(axis)])
        step(axis, Replicate());
    for (int axis = axes - 1; axis >= 0; --axis)
      if (now(axis).is_shard() && is_inner_to_a_change(axis, to)) step(axis, Replicate());
    for (int axis = 0; axis < axes; ++axis) step(axis, to[static_cast<std::size_t>(axis)]);
    return local_;
  }

 private:
  [[nodiscard]] Placement now(int axis) const { return now_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] int ranks(int axis) const {
    return context_.place()[static_cast<std::size_t>(axis)].size;
  }
  [[nodiscard]] int rank(int axis) const {
    return context_.place()[static_cast<std::size_t>(axis)].coordinate;
  }

  // Returns true if an outer axis starts or stops sharding the dim that this axis shards.
  [[nodiscard]] bool is_inner_to_a_change(int axis, std::span<const Placement> to) const {
    int dim = now(axis).dim();
    for (int outer = 0; outer < axis; ++outer) {
      Placement next = to[static_cast<std::size_t>(outer)];
      if (now(outer) != next && (now(outer).is_shard_of(dim) || next.is_shard_of(dim))) return true;
    }
    return false;
  }

  // Returns the length that is left of a dim after the axes before `axis` have split it.
  [[nodiscard]] std::int64_t length(int dim, int axis) const {
    std::int64_t length = sizes_[static_cast<std::size_t>(dim)];
    for (int outer = 0; outer < axis; ++outer)
      if (now(outer).is_shard_of(dim))
        length = length_of(length, now(outer), ranks(outer), rank(outer));
    return length;
  }

  // Returns the number of elements on each rank of the axis, for a tensor that differs from `like`
  // in the shard's dim only.
  [[nodiscard]] Counts counts(int axis, Placement shard, const at::Tensor& like) const {
    std::int64_t whole = length(shard.dim(), axis), others = 1;
    for (int dim = 0; dim < like.dim(); ++dim)
      if (dim != shard.dim()) others *= like.size(dim);
    Counts all;
    for (int r = 0; r < ranks(axis); ++r)
      all.push_back(others * length_of(whole, shard, ranks(axis), r));
    return all;
  }

  // Returns views of the consecutive pieces in `buffer`. Each has the shape of `like` except in the
  // shard dim.
  [[nodiscard]] std::vector<at::Tensor> pieces(int axis, Placement shard, const at::Tensor& buffer,
                                               const at::Tensor& like, const Counts& counts) const {
    std::int64_t whole = length(shard.dim(), axis), offset = 0;
    Dims sizes(like.sizes().begin(), like.sizes().end());
    std::vector<at::Tensor> all;
    for (int r = 0; r < ranks(axis); ++r) {
      sizes[static_cast<std::size_t>(shard.dim())] = length_of(whole, shard, ranks(axis), r);
      std::int64_t count = counts[static_cast<std::size_t>(r)];
      all.push_back(buffer.narrow(0, offset, count).view(sizes));
      offset += count;
    }
    return all;
  }

  void count(std::int64_t Traffic::*calls, std::int64_t received) {
    std::lock_guard lock(context_.traffic_mutex);
    ++(context_.traffic.*calls);
    context_.traffic.bytes += received * static_cast<std::int64_t>(local_.element_size());
  }

  void gather(int axis) {
    Placement shard = now(axis);
    Counts all = counts(axis, shard, local_);
    std::int64_t total = sum_of(all);
    at::Tensor buffer = at::empty({total}, local_.options());
    if (total > 0) {
      wait(context_, context_.group(axis).all_gather(buffer, flat(local_), all, {.tag = tag}));
      count(&Traffic::all_gathers, total - local_.numel());
    }
    local_ = join(pieces(axis, shard, buffer, local_, all), shard, length(shard.dim(), axis));
  }

  void reduce(int axis) {
    local_ = local_.clone(at::MemoryFormat::Contiguous);
    all_reduce(context_, axis, local_, now(axis).op());
  }

  void reduce_scatter(int axis, Placement shard) {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < ranks(axis); ++r) parts.push_back(cut(local_, shard, ranks(axis), r));
    Dims sizes(parts[static_cast<std::size_t>(rank(axis))].sizes().begin(),
               parts[static_cast<std::size_t>(rank(axis))].sizes().end());
    at::Tensor result = at::empty(sizes, local_.options());
    if (local_.numel() > 0) {
      bool lies_so = shard.dim() == 0 && shard.parts() == 1 && !shard.is_zigzag();
      at::Tensor input = lies_so ? flat(local_) : joined_flat(parts);
      wait(context_, context_.group(axis).reduce_scatter(result.view({-1}), input,
                                                         counts(axis, shard, local_),
                                                         now(axis).op(), {.tag = tag}));
      std::int64_t n = ranks(axis);
      count(&Traffic::reduce_scatters, local_.numel() * (n - 1) / n);
    }
    local_ = result;
  }

  void exchange(int axis, Placement to) {
    Placement from = now(axis);
    std::vector<at::Tensor> outgoing;
    Counts sent;
    for (int r = 0; r < ranks(axis); ++r) {
      outgoing.push_back(cut(local_, to, ranks(axis), r));
      sent.push_back(outgoing.back().numel());
    }
    const at::Tensor mine = outgoing[static_cast<std::size_t>(rank(axis))];
    Counts received = counts(axis, from, mine);
    at::Tensor buffer = at::empty({sum_of(received)}, local_.options());
    if (anybody_has_elements(axis, from)) {
      wait(context_, context_.group(axis).all_to_all(buffer, joined_flat(outgoing), received, sent,
                                                     {.tag = tag}));
      count(&Traffic::all_to_alls, buffer.numel() - mine.numel());
    }
    local_ = join(pieces(axis, from, buffer, mine, received), from, length(from.dim(), axis));
  }

  // Returns true if any rank of the axis has elements; equal on all of these ranks.
  [[nodiscard]] bool anybody_has_elements(int axis, Placement shard) const {
    return sum_of(counts(axis, shard, local_)) > 0;
  }

  void make_partial(int axis, Op op) {
    if (rank(axis) == 0) return;
    if (op == Op::sum || op == Op::bxor) local_ = at::zeros_like(local_);
    if (op == Op::product) local_ = at::ones_like(local_);
  }

  void spread(int axis) {
    Placement shard = now(axis);
    Dims sizes(local_.sizes().begin(), local_.sizes().end());
    std::int64_t whole = length(shard.dim(), axis);
    sizes[static_cast<std::size_t>(shard.dim())] = whole;
    at::Tensor all = at::zeros(sizes, local_.options());
    std::int64_t block = whole / shard.parts();
    std::int64_t offset = 0;
    for (int part = 0; part < shard.parts(); ++part)
      for (const layout::Range& range : ranges_of(block, shard, ranks(axis), rank(axis))) {
        all.narrow(shard.dim(), part * block + range.begin, range.length())
            .copy_(local_.narrow(shard.dim(), offset, range.length()));
        offset += range.length();
      }
    local_ = all;
  }

  void step(int axis, Placement to) {
    Placement from = now(axis);
    if (from == to) return;
    if (ranks(axis) > 1) {
      if (from.is_partial() && to.is_shard()) {
        reduce_scatter(axis, to);
      } else if (from.is_shard() && to.is_shard() && from.dim() != to.dim()) {
        exchange(axis, to);
      } else if (from.is_shard() && to == Partial()) {
        spread(axis);
      } else {
        through_replicate(axis, to);
      }
    }
    now_[static_cast<std::size_t>(axis)] = to;
  }

  void through_replicate(int axis, Placement to) {
    Placement from = now(axis);
    if (from.is_shard()) gather(axis);
    if (from.is_partial()) reduce(axis);
    if (to.is_shard()) local_ = cut(local_, to, ranks(axis), rank(axis));
    if (to.is_partial()) make_partial(axis, to.op());
  }

  MeshContext& context_;
  Dims sizes_;
  PlacementList now_;
  at::Tensor local_;
};

}  // namespace

at::Tensor converted(const at::Tensor& local, const Spec& spec, std::span<const Placement> to) {
  const dispatch::MemoryUse use(local, tag);  // groups bypass the dispatcher
  return Conversion(local, spec).run(to);
}

void all_reduce(MeshContext& context, int axis, const at::Tensor& tensor, Op op) {
  if (tensor.numel() == 0) return;
  wait(context, context.group(axis).all_reduce(tensor, op, {.tag = tag}));
  std::int64_t n = context.place()[static_cast<std::size_t>(axis)].size;
  std::lock_guard lock(context.traffic_mutex);
  ++context.traffic.all_reduces;
  context.traffic.bytes += 2 * static_cast<std::int64_t>(tensor.nbytes()) * (n - 1) / n;
}

double cost_of(Placement from, Placement to, int ranks, double bytes) {
  if (ranks == 1 || from == to) return 0;
  double part = (ranks - 1.0) / ranks * bytes;
  // A Partial tensor that is reduced to shards is usually gathered later.
  if (from.is_partial()) return to.is_partial() ? -1 : 2 * part;
  if (to.is_partial()) {
    if (from.is_shard()) return -1;
    return 2 * bytes;  // memory is filled and read again
  }
  if (from.is_replicate()) return 0;
  return to.is_replicate() ? part : part / ranks;
}

}  // namespace lockstep::global
