#include "comm/backends/hierarchical/runner.h"

#include <lockstep/comm/group.h>
#include <lockstep/store/prefix_store.h>

#include "base/format.h"
#include "comm/backend/blocking_backend.h"
#include "comm/backend/posted_call.h"
#include "comm/backend/tensors.h"
#include "comm/backends/hierarchical/layout.h"
#include "comm/call/record.h"
#include "sys/own_process.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

namespace lockstep::hierarchical {
namespace {

struct Parts {
  HostLayout layout;
  Group local;                  // the ranks of this host
  std::optional<Group> across;  // Layout::across(); std::nullopt if this rank is not in it
  Group all;                    // all ranks; slow, for operations that the others cannot do
};

using Counts = std::vector<std::int64_t>;

// Larger tensors are split into segments whose phases overlap.
constexpr std::int64_t segment_bytes = 8 << 20;
// Below this size, the host's ranks reduce the whole tensor together: two phases instead of three.
constexpr std::int64_t small_bytes = 8 << 10;

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

// Returns the tag of the inner operations of a call, which makes them match only those of an equal
// call: calls with two roots on one host, or a sum and an average, have the same inner operations.
// A message has one inner operation, so its own tag suffices.
std::string tag_of_parts(const PostedCall& call) {
  if (is_message(call.collective)) return call.tag;
  return formatted("{}{}for {} #{} [{:x}]", call.tag, call.tag.empty() ? "" : ", ",
                   name_of(call.collective), call.number, fingerprint_of(call));
}

// Performs one call: run() returns when this rank's part is complete, and throws the subgroups'
// exceptions. One thread performs the calls of one task queue; calls of different queues run
// concurrently.
//
// all_reduce, h hosts of l ranks each: reduce_scatter inside the host, all_reduce of each chunk
// across hosts by all ranks at once, all_gather inside. A rank sends 2 (h-1)/h of an l-th of the
// tensor across hosts; a flat ring would send 2 (hl-1)/hl of the whole tensor (the scheme of
// BlueConnect, Cho et al., MLSys 2019). Large tensors are split into segments, so that
// communication inside hosts and over the network overlap.
class Performer {
 public:
  Performer(Parts& parts, const PostedCall& call)
      : local_(parts.local),
        across_(parts.across),
        all_(parts.all),
        call_(call),
        layout_(parts.layout),
        tag_(tag_of_parts(call)),
        options_{.tag = tag_, .timeout = {}},
        averages_twice_(call.op == Op::average && layout_.is_even() && is_half(call.input)),
        op_(call.op == Op::average && !averages_twice_ ? Op::sum : call.op) {}

  void run() {
    at::NoGradGuard no_grad;
    switch (call_.collective) {
      case Collective::all_reduce:
        return all_reduce(flat(call_.output));
      case Collective::reduce:
        return reduce();
      case Collective::broadcast:
        return broadcast();
      case Collective::all_gather:
        return all_gather();
      case Collective::reduce_scatter:
        return reduce_scatter();
      case Collective::barrier:
        return barrier();
      case Collective::send:
      case Collective::recv:
        return message();
      case Collective::all_to_all:
        return all_to_all();
      case Collective::gather:
        return all_.gather(call_.output, call_.input, call_.root, options_, call_.where).wait();
      case Collective::scatter:
        return all_.scatter(call_.output, call_.input, call_.root, options_, call_.where).wait();
    }
  }

 private:
  void all_reduce(const at::Tensor& tensor) {
    if (!layout_.is_even()) return all_reduce_by_leaders(tensor);
    if (static_cast<std::int64_t>(tensor.nbytes()) > small_bytes)
      return all_reduce_in_segments(tensor);
    local_.all_reduce(tensor, op_, options_, call_.where).wait();
    across_->all_reduce(tensor, op_, options_, call_.where).wait();
    divide(tensor);
  }

  void all_reduce_in_segments(const at::Tensor& tensor) {
    struct Segment {
      at::Tensor whole;
      at::Tensor mine;
      Counts counts;
      Work work;
    };
    auto most = segment_bytes / static_cast<std::int64_t>(tensor.element_size());
    std::vector<Segment> segments;
    for (std::int64_t begin = 0; begin < tensor.numel(); begin += most) {
      auto whole = tensor.narrow(0, begin, std::min(most, tensor.numel() - begin));
      Counts counts(local_.size(), whole.numel() / local_.size());
      counts.back() += whole.numel() % local_.size();
      auto place = std::accumulate(counts.begin(), counts.begin() + local_.rank(), std::int64_t{0});
      auto mine = whole.narrow(0, place, counts[local_.rank()]);
      auto work = local_.reduce_scatter(mine, whole, counts, op_, options_, call_.where);
      segments.push_back({whole, mine, counts, work});
    }
    for (auto& segment : segments) {
      segment.work.wait();
      segment.work = across_->all_reduce(segment.mine, op_, options_, call_.where);
    }
    for (auto& segment : segments) {
      segment.work.wait();
      divide(segment.mine);
      segment.work =
          local_.all_gather(segment.whole, segment.mine, segment.counts, options_, call_.where);
    }
    for (auto& segment : segments) segment.work.wait();
  }

  // Half precision is divided before it is rounded for the transfer to other hosts: a sum could
  // overflow.
  void all_reduce_by_leaders(const at::Tensor& tensor) {
    const bool rounds = is_half(tensor);
    auto sum = rounds ? tensor.to(at::kFloat) : tensor;
    local_.reduce(sum, 0, op_, options_, call_.where).wait();
    if (across_) {
      if (rounds) {
        divide(sum);
        tensor.copy_(sum);
      }
      across_->all_reduce(tensor, op_, options_, call_.where).wait();
      if (!rounds) divide(tensor);
    }
    local_.broadcast(tensor, 0, options_, call_.where).wait();
  }

  void reduce() {
    auto sum = flat(call_.input).clone();
    all_reduce(sum);
    if (call_.output.defined()) flat(call_.output).copy_(sum);
  }

  // Broadcasts first inside the root's host, then from one rank of that host to one rank of each
  // other host, then inside those hosts. If hosts are even, the root itself sends to the other
  // hosts.
  void broadcast() {
    auto root_host = layout_.host_of(call_.root);
    bool at_root = layout_.host == root_host;
    int speaker = layout_.is_even() ? layout_.place_of(call_.root) : 0;
    if (at_root)
      local_.broadcast(call_.output, layout_.place_of(call_.root), options_, call_.where).wait();
    if (across_ && layout_.place == speaker)
      across_->broadcast(call_.output, root_host, options_, call_.where).wait();
    if (!at_root) local_.broadcast(call_.output, speaker, options_, call_.where).wait();
  }

  // If hosts are even, each rank gathers the parts of the ranks with its place, then shares them
  // inside its host. Otherwise the leaders gather whole hosts. In both cases the parts must be
  // reordered at the end.
  void all_gather() {
    auto counts = counts_of(call_.output_counts, call_.output.numel());
    auto gathered = at::empty({call_.output.numel()}, call_.output.options());
    std::vector<int> order;
    auto count_of = [&](const std::vector<int>& ranks) {
      return std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0},
                             [&](auto sum, int rank) { return sum + counts[rank]; });
    };
    auto counts_in = [&](const std::vector<int>& ranks) {
      Counts result;
      for (int rank : ranks) result.push_back(counts[rank]);
      return result;
    };
    if (layout_.is_even()) {
      Counts columns;
      for (std::size_t place = 0; place < layout_.local().size(); ++place) {
        std::vector<int> column;
        for (const auto& ranks : layout_.hosts) column.push_back(ranks[place]);
        columns.push_back(count_of(column));
        order.insert(order.end(), column.begin(), column.end());
      }
      auto equals = at::empty({columns[layout_.place]}, call_.output.options());
      auto column_counts = counts_in(layout_.across());
      across_->all_gather(equals, flat(call_.input), column_counts, options_, call_.where).wait();
      local_.all_gather(gathered, equals, columns, options_, call_.where).wait();
    } else {
      Counts rows;
      for (const auto& ranks : layout_.hosts) {
        rows.push_back(count_of(ranks));
        order.insert(order.end(), ranks.begin(), ranks.end());
      }
      auto row = at::empty({rows[layout_.host]}, call_.output.options());
      auto local_counts = counts_in(layout_.local());
      local_.all_gather(row, flat(call_.input), local_counts, options_, call_.where).wait();
      if (across_) across_->all_gather(gathered, row, rows, options_, call_.where).wait();
      local_.broadcast(gathered, 0, options_, call_.where).wait();
    }
    const auto begins = begins_of(counts);
    std::int64_t from = 0;
    for (int rank : order) {
      const auto part = gathered.narrow(0, from, counts[rank]);
      flat(call_.output).narrow(0, begins[rank], counts[rank]).copy_(part);
      from += counts[rank];
    }
  }

  // Sums the parts of this rank's place on every host inside the host, then sends each to its host.
  void reduce_scatter() {
    auto input = flat(call_.input);
    auto counts = counts_of(call_.input_counts, input.numel());
    const auto begins = begins_of(counts);
    int rank = layout_.local()[layout_.place];
    if (!layout_.is_even()) {
      auto sum = input.clone();
      all_reduce(sum);
      flat(call_.output).copy_(sum.narrow(0, begins[rank], counts[rank]));
      return;
    }
    auto by_place = at::empty_like(input);
    Counts columns(layout_.local().size());
    Counts mine;
    std::int64_t begin = 0;
    for (std::size_t place = 0; place < columns.size(); ++place) {
      for (const auto& ranks : layout_.hosts) {
        int member = ranks[place];
        by_place.narrow(0, begin, counts[member])
            .copy_(input.narrow(0, begins[member], counts[member]));
        begin += counts[member];
        columns[place] += counts[member];
        if (static_cast<int>(place) == layout_.place) mine.push_back(counts[member]);
      }
    }
    auto column = at::empty({columns[layout_.place]}, input.options());
    local_.reduce_scatter(column, by_place, columns, op_, options_, call_.where).wait();
    auto part = at::empty({counts[rank]}, input.options());
    across_->reduce_scatter(part, column, mine, op_, options_, call_.where).wait();
    divide(part);
    flat(call_.output).copy_(part);
  }

  void all_to_all() {
    if (call_.input_counts.empty())
      return all_.all_to_all(call_.output, call_.input, options_, call_.where).wait();
    all_.all_to_all(call_.output, call_.input, call_.output_counts, call_.input_counts, options_,
                    call_.where)
        .wait();
  }

  void message() {
    bool is_local = layout_.host_of(call_.root) == layout_.host;
    Group& group = is_local ? local_ : all_;
    int peer = is_local ? layout_.place_of(call_.root) : call_.root;
    auto work = call_.collective == Collective::send
                    ? group.send(call_.input, peer, options_, call_.where)
                    : group.recv(call_.output, peer, options_, call_.where);
    work.wait();
  }

  void barrier() {
    local_.barrier(options_, call_.where).wait();
    if (across_) across_->barrier(options_, call_.where).wait();
    if (!layout_.is_even()) local_.barrier(options_, call_.where).wait();
  }

  // For an average: divides after the sum.
  void divide(const at::Tensor& tensor) const {
    if (call_.op == Op::average && !averages_twice_)
      tensor.div_(at::full({}, static_cast<double>(layout_.size()), tensor.options()));
  }
  [[nodiscard]] static Counts begins_of(const Counts& counts) {
    Counts begins(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::int64_t{0});
    return begins;
  }

  [[nodiscard]] Counts counts_of(const Counts& given, std::int64_t all) const {
    return given.empty() ? Counts(layout_.size(), all / layout_.size()) : given;
  }

  Group& local_;
  std::optional<Group>& across_;
  Group& all_;
  const PostedCall& call_;
  const HostLayout& layout_;
  const std::string tag_;
  CallOptions options_;
  // Averages the hosts' averages: a sum could overflow half precision.
  const bool averages_twice_;
  const Op op_;  // of the inner operations
};

// Subgroups have no timeout: the whole group has timeouts, names late ranks, and ends its
// subgroups.
constexpr Duration practically_never = std::chrono::hours(24 * 365);

// Subgroups have descriptive names, because errors show them.
std::string inside_name(const std::string& group, int host) {
  return formatted("{}/host {}", group, host);
}
std::string across_name(const std::string& group, int place) {
  return formatted("{}/rank {} of each host", group, place);
}

Parts make_parts(const std::shared_ptr<Backend>& inside, const std::shared_ptr<Backend>& across,
                 std::span<const std::string> hosts, const std::string& group, int rank) {
  auto layout = make_layout(hosts, rank);
  Parts parts{.layout = layout,
              .local = {inside, inside_name(group, layout.host), practically_never},
              .across = std::nullopt,
              .all = {across, group, practically_never}};
  if (!layout.is_across()) return parts;
  auto ranks = layout.across();
  auto name = across_name(group, layout.is_even() ? layout.place : 0);
  auto equals = ranks.size() > 1 ? across->subset(ranks, name) : nullptr;
  parts.across = Group(std::move(equals), name, practically_never);
  return parts;
}

class HierarchicalRunner final : public BlockingCollectives {
 public:
  HierarchicalRunner(std::shared_ptr<Backend> inside, std::shared_ptr<Backend> across,
                     std::vector<std::string> hosts, const std::string& group, int rank)
      : inside_(std::move(inside)),
        across_(std::move(across)),
        hosts_(std::move(hosts)),
        parts_(make_parts(inside_, across_, hosts_, group, rank)) {}

  [[nodiscard]] std::string_view name() const override { return "hierarchical"; }
  void run(const PostedCall& call) override { Performer(parts_, call).run(); }
  void close(std::string_view reason) noexcept override {
    for (auto* part : {&parts_.local, parts_.across ? &*parts_.across : nullptr, &parts_.all}) {
      try {
        if (part != nullptr) part->abort(reason);
      } catch (const std::exception&) {
        // The subgroup has already failed, or its peers are unreachable.
      }
    }
  }

  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    return parts_.local.empty_shared(sizes, options);
  }
  [[nodiscard]] std::shared_ptr<BlockingCollectives> subset(std::span<const int> ranks,
                                                            const std::string& name, int rank,
                                                            Duration) override {
    std::vector<std::string> hosts;
    for (int member : ranks) hosts.push_back(hosts_.at(member));
    auto layout = make_layout(hosts, rank);
    std::vector<int> neighbours;  // as ranks of `inside_`
    for (int member : layout.local()) neighbours.push_back(parts_.layout.place_of(ranks[member]));
    auto inside = neighbours.size() > 1
                      ? inside_->subset(neighbours, inside_name(name, layout.host))
                      : nullptr;
    auto across = across_->subset(ranks, name);
    return std::make_shared<HierarchicalRunner>(std::move(inside), std::move(across),
                                                std::move(hosts), name, rank);
  }

  // Subgroups on one host need only the inner backend.
  [[nodiscard]] std::shared_ptr<Backend> backend_of(std::span<const int> ranks,
                                                    const std::string& name) override {
    std::vector<int> places;
    for (const int rank : ranks) {
      if (parts_.layout.host_of(rank) != parts_.layout.host) return nullptr;
      places.push_back(parts_.layout.place_of(rank));
    }
    return inside_->subset(places, name);
  }

 private:
  std::shared_ptr<Backend> inside_;  // null if this rank is alone on its host
  std::shared_ptr<Backend> across_;  // all ranks
  std::vector<std::string> hosts_;
  Parts parts_;
};

}  // namespace

std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, const BackendOptions& options,
                              const MakeBackend& inside, const MakeBackend& across) {
  auto layout = make_layout(options.hosts, rank);
  auto size = layout.size();
  std::shared_ptr<Backend> local;
  if (layout.local().size() > 1) {
    auto place = std::make_shared<PrefixStore>(formatted("host/{}/", layout.host), store);
    local = inside(std::move(place), layout.place, layout.local());
  }
  auto all = across(std::make_shared<PrefixStore>("across/", store), rank, all_ranks(size));
  auto runner = std::make_shared<HierarchicalRunner>(std::move(local), std::move(all),
                                                     options.hosts, "world", rank);
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(runner), std::move(store), GroupNames(), rank, size, options.join_timeout);
}

}  // namespace lockstep::hierarchical
