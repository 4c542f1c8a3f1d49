#include "global/choose.h"

#include "base/format.h"
#include "global/convert.h"

#include <lockstep/base/error.h>
#include <lockstep/layout/tensor_slice.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep::global {
namespace {

constexpr int no_label = -2;

// One choice, and the label that it shards.
struct Candidate {
  RuleChoice choice;
  int label = no_label;
  double deferred = 0;  // cost of reducing results later instead of operands now
};

std::int64_t up(std::int64_t length, std::int64_t ranks) { return (length + ranks - 1) / ranks; }

class Chooser {
 public:
  Chooser(const Rule& rule, const RuleCall& call, std::span<const int> result_of_operand,
          std::span<const AxisPlace> place, const PlacementHints& hints)
      : rule_(rule),
        call_(call),
        result_of_operand_(result_of_operand),
        place_(place),
        hints_(hints),
        ranks_cutting_(rule.labels.size(), 1) {}

  Chosen run() {
    chosen_.operands.resize(call_.size());
    chosen_.results.resize(rule_.results.size());
    for (axis_ = 0; axis_ < place_.size(); ++axis_) {
      candidates_.clear();
      add_candidates();
      const Candidate& best = cheapest();
      for (std::size_t i = 0; i < call_.size(); ++i)
        chosen_.operands[i].push_back(best.choice.operands[i]);
      for (std::size_t i = 0; i < rule_.results.size(); ++i)
        chosen_.results[i].push_back(best.choice.results[i]);
      if (best.label != no_label)
        ranks_cutting_[static_cast<std::size_t>(best.label)] *= place_[axis_].size;
    }
    return std::move(chosen_);
  }

 private:
  [[nodiscard]] Placement now(std::size_t operand) const {
    return call_.operands()[operand].placements[axis_];
  }

  [[nodiscard]] RuleChoice replicated() const {
    RuleChoice choice{Placements(call_.size()), Placements(rule_.results.size())};
    for (int operand : rule_.unread)
      choice.operands[static_cast<std::size_t>(operand)] = now(static_cast<std::size_t>(operand));
    return choice;
  }

  void add_candidates() {
    candidates_.push_back({replicated()});
    if (flattens_sequence()) return;
    for (int label = 0; label < static_cast<int>(rule_.labels.size()); ++label)
      for (Cut cut : cuts_of(label))
        if (can_cut(label, cut)) add_cut(label, cut);
    for (const auto& set : rule_.linear) add_linear(set);
    for (const RuleChoice& choice : rule_.more)
      if (divides(choice.lengths) && agrees_with_earlier_axes(choice) &&
          !(choice.once && was_taken(choice)))
        candidates_.push_back({choice});
    std::erase_if(candidates_, [&](const Candidate& one) { return !parts_divide(one.choice); });
  }

  [[nodiscard]] bool was_taken(const RuleChoice& choice) const {
    for (std::size_t axis = 0; axis < axis_; ++axis) {
      bool is_it = true;
      for (std::size_t i = 0; i < choice.operands.size(); ++i)
        is_it = is_it && chosen_.operands[i][axis] == choice.operands[i];
      if (is_it) return true;
    }
    return false;
  }

  // A choice shards a dim as a whole, so the shards of earlier axes on the same dim must be of the
  // same kind.
  [[nodiscard]] bool agrees_with_earlier_axes(const RuleChoice& choice) const {
    auto agree = [](const std::vector<PlacementList>& earlier, const Placements& now) {
      for (std::size_t i = 0; i < now.size(); ++i)
        for (Placement one : earlier[i])
          if (now[i].is_shard() && one.is_shard_of(now[i].dim()) && one != now[i]) return false;
      return true;
    };
    return agree(chosen_.operands, choice.operands) && agree(chosen_.results, choice.results);
  }

  [[nodiscard]] bool parts_divide(const RuleChoice& choice) const {
    auto divide = [&](PlacementList earlier, Placement now, at::IntArrayRef sizes) {
      if (!now.is_shard()) return true;
      earlier.push_back(now);
      return global::parts_divide(earlier, sizes, place_);
    };
    for (std::size_t i = 0; i < choice.operands.size(); ++i)
      if (!divide(chosen_.operands[i], choice.operands[i], call_.sizes(i))) return false;
    for (std::size_t i = 0; i < choice.results.size(); ++i)
      if (!divide(chosen_.results[i], choice.results[i], rule_.results[i].sizes)) return false;
    return true;
  }

  [[nodiscard]] bool is_sequence(std::size_t operand, Placement placement) const {
    return hints_.sequence_dim >= 0 && hints_.sequence_axis == static_cast<int>(axis_) &&
           call_.dim(operand) == 3 && placement.is_shard_of(hints_.sequence_dim);
  }

  // Returns true if the operation flattens a sequence into rows for a matrix product. The sequence
  // is gathered here, where autograd records it, so that forward and backward can reuse the
  // gathered tensor.
  [[nodiscard]] bool flattens_sequence() const {
    return call_.size() == 1 && rule_.results.size() == 1 && rule_.results[0].sizes.size() == 2 &&
           is_sequence(0, now(0)) && rule_.moves;
  }

  [[nodiscard]] bool divides(const std::vector<std::int64_t>& lengths) const {
    std::int64_t ranks = 1;
    for (const AxisPlace& axis : place_) ranks *= axis.size;
    return std::ranges::all_of(lengths, [&](std::int64_t each) { return each % ranks == 0; });
  }

  // How a dim is sharded, regardless of its number.
  struct Cut {
    int parts = 1;
    bool zigzag = false;
    bool operator==(const Cut&) const = default;
  };

  // Returns the plain cut, and every other cut of the label that some operand has.
  [[nodiscard]] std::vector<Cut> cuts_of(int label) const {
    std::vector<Cut> all = {Cut()};
    for (std::size_t i = 0; i < call_.size(); ++i) {
      if (!now(i).is_shard()) continue;
      const auto& dims = rule_.operands[i];
      const Cut cut{now(i).parts(), now(i).is_zigzag()};
      bool is_it = dims[static_cast<std::size_t>(now(i).dim())] == label;
      if (is_it && std::ranges::count(all, cut) == 0) all.push_back(cut);
    }
    return all;
  }

  [[nodiscard]] std::vector<std::int64_t> lengths_of(int label) const {
    const auto& known = rule_.labels[static_cast<std::size_t>(label)].lengths;
    if (!known.empty()) return known;
    for (std::size_t i = 0; i < call_.size(); ++i)
      for (std::size_t dim = 0; dim < rule_.operands[i].size(); ++dim)
        if (rule_.operands[i][dim] == label) return {call_.sizes(i)[dim]};
    return {};
  }

  [[nodiscard]] bool can_cut(int label, Cut cut) const {
    const Rule::Label& known = rule_.labels[static_cast<std::size_t>(label)];
    std::vector<std::int64_t> lengths = lengths_of(label);
    if (!known.cut || lengths.empty()) return false;
    bool is_nested = ranks_cutting_[static_cast<std::size_t>(label)] > 1;
    std::int64_t ranks = ranks_cutting_[static_cast<std::size_t>(label)] * place_[axis_].size;
    if (cut.zigzag) ranks *= 2;  // twice as many parts
    std::int64_t first = lengths.front();
    bool is_plain = cut == Cut();
    if (first % cut.parts != 0 || (!is_plain && lengths.size() > 1)) return false;
    bool is_even =
        std::ranges::all_of(lengths, [&](auto each) { return each / cut.parts % ranks == 0; });
    if (is_even && first > 0) return true;
    std::int64_t block = first / cut.parts;
    if (!known.empty && (is_nested || up(block, ranks) * (ranks - 1) >= block)) return false;
    // All lengths must be split in the same proportion.
    return std::ranges::all_of(lengths,
                               [&](std::int64_t each) {
                                 return !is_nested &&
                                        up(each, ranks) * first == up(first, ranks) * each;
                               }) ||
           lengths.size() == 1;
  }

  void add_cut(int label, Cut cut) {
    Candidate candidate{replicated(), label};
    const Rule::Label& known = rule_.labels[static_cast<std::size_t>(label)];
    auto place = [&](const std::vector<int>& dims, Placement& placement) {
      auto found = std::ranges::find(dims, label);
      bool is_there = found != dims.end();
      if (is_there)
        placement = Shard(static_cast<int>(found - dims.begin()), cut.parts).zigzag(cut.zigzag);
      return is_there;
    };
    for (std::size_t i = 0; i < call_.size(); ++i)
      place(rule_.operands[i], candidate.choice.operands[i]);
    for (std::size_t i = 0; i < rule_.results.size(); ++i) {
      if (place(rule_.results[i].dims, candidate.choice.results[i])) continue;
      if (!known.reduce) return;
      candidate.choice.results[i] = Partial(*known.reduce);
    }
    for (int addend : known.with_partial)
      candidate.choice.operands[static_cast<std::size_t>(addend)] =
          Partial(known.reduce.value_or(Op::sum));
    candidates_.push_back(std::move(candidate));
  }

  void add_linear(const std::vector<int>& set) {
    for (int operand : set) {
      Placement partial = now(static_cast<std::size_t>(operand));
      if (!partial.is_partial()) continue;
      bool is_linear = partial.op() == Op::sum || partial.op() == Op::average;
      if (!is_linear && !rule_.moves) continue;
      Candidate candidate{replicated()};
      for (int each : set) candidate.choice.operands[static_cast<std::size_t>(each)] = partial;
      for (Placement& result : candidate.choice.results) result = partial;
      if (!rule_.moves) candidate.deferred = cost_of_deferring(set, partial);
      candidates_.push_back(std::move(candidate));
    }
  }

  // Partial sums must be reduced at some time. Deferring the reduction pays if the results are not
  // larger than the operands; a product may be much larger, such as the gradient of a weight
  // computed from few rows.
  [[nodiscard]] double cost_of_deferring(const std::vector<int>& set, Placement partial) const {
    double now_bytes = 0, later_bytes = 0;
    double element = 0;
    for (int each : set) {
      const auto i = static_cast<std::size_t>(each);
      const RuleOperand& operand = call_.operands()[i];
      element = static_cast<double>(c10::elementSize(operand.dtype));
      if (now(i).is_partial())
        now_bytes += static_cast<double>(layout::numel_of(operand.sizes)) * element;
    }
    for (const Rule::Result& result : rule_.results)
      later_bytes += static_cast<double>(layout::numel_of(result.sizes)) * element;
    const double more = std::max(0.0, later_bytes - now_bytes);
    return cost_of(partial, Replicate(), place_[axis_].size, more);
  }

  // Returns the cost of converting one operand along this axis; negative if it is impossible.
  [[nodiscard]] double cost_of_operand(std::size_t i, const RuleChoice& choice) const {
    const RuleOperand& operand = call_.operands()[i];
    Placement wanted = choice.operands[i];
    if (operand.is_number) return wanted.is_partial() ? -1 : 0;
    // A write to a plain tensor must write the whole tensor.
    if (operand.is_plain && operand.written && !wanted.is_replicate()) return -1;
    double bytes = static_cast<double>(layout::numel_of(operand.sizes)) *
                   static_cast<double>(c10::elementSize(operand.dtype));
    for (std::size_t other = 0; other < place_.size(); ++other)
      if (other != axis_ && operand.placements[other].is_shard()) bytes /= place_[other].size;
    double cost = cost_of(now(i), wanted, place_[axis_].size, bytes);
    // The shard is gathered once, where it is used; until then, each rank works on its own part.
    if (now(i).is_partial() && is_sequence(i, wanted)) cost /= 2;
    if (!operand.written || cost < 0) return cost;
    int result = result_of_operand_[i];
    bool has_result = result >= 0 && static_cast<std::size_t>(result) < choice.results.size();
    Placement left = has_result ? choice.results[static_cast<std::size_t>(result)] : wanted;
    double back = cost_of(left, now(i), place_[axis_].size, bytes);
    return back < 0 ? back : cost + back;
  }

  // Returns the cost of converting the gradient of a table to the table's placements.
  [[nodiscard]] double cost_of_result(const RuleChoice& choice) const {
    if (!rule_.is_gradient_of_table) return 0;
    const auto& sizes = rule_.results[0].sizes;
    const auto table = std::ranges::find(hints_.tables, sizes, &PlacementHints::Table::sizes);
    if (table == hints_.tables.end()) return 0;
    const double bytes = static_cast<double>(layout::numel_of(sizes)) *
                         static_cast<double>(c10::elementSize(call_.operands()[0].dtype));
    const Placement now = choice.results[0], wanted = table->placements[axis_];
    // Rows that other ranks own need not be computed.
    return now == wanted ? 0 : 1 + std::max(0.0, cost_of(now, wanted, place_[axis_].size, bytes));
  }

  [[nodiscard]] const Candidate& cheapest() const {
    const Candidate* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    std::size_t fewest = 0;
    for (const Candidate& candidate : candidates_) {
      double cost = cost_of_result(candidate.choice) + candidate.deferred;
      std::size_t conversions = 0;
      for (std::size_t i = 0; i < call_.size() && cost >= 0; ++i) {
        double one = cost_of_operand(i, candidate.choice);
        cost = one < 0 ? -1 : cost + one;
        if (candidate.choice.operands[i] != now(i)) ++conversions;
      }
      bool is_better =
          cost >= 0 && (best == nullptr || cost < least || (cost == least && conversions < fewest));
      if (!is_better) continue;
      best = &candidate;
      least = cost;
      fewest = conversions;
    }
    if (best == nullptr)
      throw InvalidArgument(formatted(
          "{}: the placements of the arguments cannot be changed to any that its rule allows",
          call_.operation()));
    return *best;
  }

  const Rule& rule_;
  const RuleCall& call_;
  std::span<const int> result_of_operand_;
  std::span<const AxisPlace> place_;
  const PlacementHints& hints_;
  std::size_t axis_ = 0;
  Chosen chosen_;                            // of the earlier axes
  std::vector<std::int64_t> ranks_cutting_;  // by label, for the earlier axes
  std::vector<Candidate> candidates_;
};

}  // namespace

Chosen choose(const Rule& rule, const RuleCall& call, std::span<const int> result_of_operand,
              std::span<const AxisPlace> place, const PlacementHints& hints) {
  return Chooser(rule, call, result_of_operand, place, hints).run();
}

}  // namespace lockstep::global
