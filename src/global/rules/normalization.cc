#include "base/check.h"
#include "global/rules/dims.h"
#include "global/rules/tables.h"

namespace lockstep::global {
namespace {

// Labels for the leading dims of [.., normalized...].
std::vector<int> leading(Rule& rule, const std::vector<std::int64_t>& sizes,
                         std::size_t normalized) {
  std::vector<int> labels(sizes.size(), Rule::whole);
  for (std::size_t dim = 0; dim + normalized < sizes.size(); ++dim) labels[dim] = rule.add();
  return labels;
}

// input, normalized_shape, weight?, bias?, eps -> out, mean, rstd
Rule layer_norm(const RuleCall& call) {
  Rule rule;
  std::size_t normalized = call.argument(1).toIntVector().size();
  std::vector<int> labels = leading(rule, call.sizes(0), normalized);
  rule.operands.push_back(labels);
  for (std::size_t i = 1; i < call.size(); ++i)
    rule.operands.emplace_back(call.sizes(i).size(), Rule::whole);
  std::vector<std::int64_t> rows = call.sizes(0);
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normalized), rows.end(), 1);
  rule.results = {{call.sizes(0), labels}, {rows, labels}, {rows, labels}};
  return rule;
}

// grad, input, normalized_shape, mean, rstd, weight?, bias?, mask -> three gradients
Rule layer_norm_backward(const RuleCall& call) {
  Rule rule;
  std::vector<std::int64_t> shape = call.argument(2).toIntVector();
  std::vector<int> labels = leading(rule, call.sizes(0), shape.size());
  for (std::size_t i = 0; i < call.size(); ++i)
    rule.operands.push_back(i < 4 ? labels : std::vector<int>(call.sizes(i).size(), Rule::whole));
  std::vector<int> whole(shape.size(), Rule::whole);
  // Linear in the gradient, but a Partial one would come out thrice, each to be reduced.
  rule.results = {{call.sizes(1), labels}, {shape, whole}, {shape, whole}};
  return rule;
}

// Every operand whose dim has the channels' length there: input and gradients dim 1, others dim 0.
struct Channels {
  Channels(const RuleCall& call, std::size_t inputs) {
    channels = rule.add({.reduce = std::nullopt});
    for (std::size_t i = 0; i < call.size(); ++i) {
      std::vector<int> labels(call.sizes(i).size(), Rule::whole);
      std::size_t dim = i < inputs ? 1 : 0;
      bool has_channels = dim < labels.size() && call.sizes(i)[dim] == call.sizes(0)[1];
      if (has_channels) labels[dim] = channels;
      rule.operands.push_back(std::move(labels));
    }
  }

  Rule rule;
  int channels;
};

void cut_rows(const RuleCall& call, Channels& made, std::size_t inputs, std::optional<Op> reduce) {
  int rows = made.rule.add({.empty = false, .reduce = reduce});
  for (std::size_t i = 0; i < inputs && i < call.size(); ++i) made.rule.operands[i][0] = rows;
}

// input, weight?, bias?, running_mean?, running_var?, training, ...: statistics of a batch need all
// of it. The running ones are written, though the schema does not say so: training keeps all as it
// is, so that they are written where they lie.
Rule batch_norm(const RuleCall& call) {
  Channels made(call, 1);
  bool training = call.argument(5).toBool();
  for (int argument : {3, 4}) {
    int operand = call.operand_of(argument);
    if (!training || operand < 0) continue;
    const Placements& now = call.operands()[static_cast<std::size_t>(operand)].placements;
    check(std::ranges::all_of(now, &Placement::is_replicate),
          "{}: expected running statistics that are replicated in training, found {}",
          call.operation(), describe(now));
  }
  if (training) made.rule.labels[0].cut = false;
  if (!training) cut_rows(call, made, 1, std::nullopt);
  std::vector<std::int64_t> kept = {training ? call.sizes(0)[1] : 0};
  made.rule.results = {
      {call.sizes(0), made.rule.operands[0]}, {kept, {Rule::whole}}, {kept, {Rule::whole}}};
  if (!training) {
    // Nothing is kept, so that nothing is missing where it is cut.
    for (Rule::Label& label : made.rule.labels) label.cut = false;
    for (Placement now : call.operands()[0].placements)
      if (now.is_shard_of(0)) {
        RuleChoice choice{Placements(call.size()), {now, Replicate(), Replicate()}, {}};
        choice.operands[0] = now;
        made.rule.more.push_back(std::move(choice));
      }
  }
  return made.rule;
}

// grad, input, weight?, running..., save..., train, eps, mask -> three gradients
Rule batch_norm_backward(const RuleCall& call) {
  Channels made(call, 2);
  std::vector<std::int64_t> shape = {call.sizes(1)[1]};
  made.rule.labels[0].cut = false;
  int train = 7;
  if (!call.argument(static_cast<std::size_t>(train)).toBool()) cut_rows(call, made, 2, Op::sum);
  made.rule.results = {
      {call.sizes(1), made.rule.operands[1]}, {shape, {Rule::whole}}, {shape, {Rule::whole}}};
  return made.rule;
}

}  // namespace

void add_normalization_rules(RuleTable& table) {
  table["native_layer_norm"] = layer_norm;
  table["native_layer_norm_backward"] = layer_norm_backward;
  table["native_batch_norm"] = batch_norm;
  table["native_batch_norm_backward"] = batch_norm_backward;
}

}  // namespace lockstep::global
