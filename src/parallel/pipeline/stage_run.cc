#include "parallel/pipeline/stage_run.h"

#include "base/check.h"
#include "dispatch/autograd_node.h"
#include "dispatch/recompute/activation_checkpoint_state.h"
#include "global/global_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace lockstep::pipeline {
namespace {

Tensors zeros_where_none(const Tensors& gradients, const Tensors& inputs) {
  at::NoGradGuard no_grad;
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    all.push_back(gradients[i].defined() ? global::plain(gradients[i])
                                         : at::zeros_like(inputs[i].detach()));
  return all;
}

// Copies gradients whose memory is shared: a weight's gradient may be in the same memory and change
// while a message is in flight.
Tensors unshared(Tensors gradients) {
  for (at::Tensor& one : gradients)
    if (one.storage().use_count() > 1) one = one.clone();
  return gradients;
}

}  // namespace

bool StageRun::trains() const {
  return std::ranges::any_of(parameters_,
                             [](const at::Tensor& one) { return one.requires_grad(); });
}

Tensors StageRun::forward(const Tensors& inputs) const {
  Tensors outputs = stage_.forward(inputs);
  check(!outputs.empty(), "stage {}: expected tensors from its forward, found none", stage_.name);
  dispatch::leave_block(outputs);
  for (const at::Tensor& output : outputs)
    check(output.defined() && output.layout() == at::kStrided,
          "stage {}: expected dense tensors from its forward, found {}", stage_.name,
          output.defined() ? "one that is sparse" : "an undefined one");
  return outputs;
}

void StageRun::keep(int micro_batch, const Tensors& inputs, const Tensors& roots) {
  Kept& kept = kept_[micro_batch];
  std::ranges::copy_if(inputs, std::back_inserter(kept.inputs),
                       [](const at::Tensor& input) { return input.requires_grad(); });
  for (const at::Tensor& root : roots)
    kept.roots.push_back(torch::autograd::impl::gradient_edge(root));
}

Tensors StageRun::backward(int micro_batch, const Tensors& gradients) {
  Kept kept = std::move(kept_.extract(micro_batch).mapped());
  if (!kept.roots.empty()) pipeline::backward(kept.roots, gradients);
  Tensors of_inputs;
  for (const at::Tensor& input : kept.inputs) of_inputs.push_back(input.grad());
  return unshared(zeros_where_none(of_inputs, kept.inputs));
}

Tensors StageRun::input(int micro_batch, const Tensors& gradients) {
  Kept& kept = kept_.at(micro_batch);
  Tensors of_inputs = kept.split.input_gradients(kept.roots, gradients, kept.inputs);
  // W keeps some of these tensors, and may make one of them a weight's gradient, to which the next
  // W adds.
  Tensors result;
  for (const at::Tensor& one : zeros_where_none(of_inputs, kept.inputs))
    result.push_back(one.clone());
  kept.inputs.clear();
  kept.roots.clear();
  return result;
}

void StageRun::weight(int micro_batch) {
  kept_.extract(micro_batch).mapped().split.weight_gradients();
}

namespace {

using torch::autograd::Edge;
using torch::autograd::Engine;
using torch::autograd::Node;

// Determines for each node whether a path leads to one of `targets`, which the engine's inputs
// need.
class WaysTo {
 public:
  WaysTo(const SplitBackward::Edges& roots, std::unordered_set<Node*> targets)
      : targets_(std::move(targets)) {
    for (const Edge& root : roots)
      if (root.is_valid()) visit(root.function.get());
  }

  [[nodiscard]] bool has(Node* node) const {
    const auto found = leads_.find(node);
    return found != leads_.end() && found->second;
  }
  [[nodiscard]] const std::vector<Node*>& nodes() const { return order_; }

 private:
  // Depth-first, without recursion: graphs are as deep as models.
  void visit(Node* root) {
    std::vector<std::pair<Node*, std::size_t>> path;
    const auto enter = [&](Node* node) {
      if (leads_.emplace(node, targets_.contains(node)).second) path.emplace_back(node, 0);
    };
    enter(root);
    while (!path.empty()) {
      Node* node = path.back().first;
      const auto& edges = node->next_edges();
      if (path.back().second < edges.size()) {
        const Edge& edge = edges[path.back().second++];
        if (edge.is_valid()) enter(edge.function.get());
        continue;
      }
      bool& leads = leads_[node];
      for (const Edge& edge : edges)
        if (edge.is_valid()) leads = leads || leads_.at(edge.function.get());
      order_.push_back(node);
      path.pop_back();
    }
  }

  std::unordered_set<Node*> targets_;
  std::unordered_map<Node*, bool> leads_;
  std::vector<Node*> order_;
};

}  // namespace

struct SplitBackward::Begin {
  explicit Begin(dispatch::NodePointer node) : node(std::move(node)) {}

  dispatch::NodePointer node;
  Gradients gradients;
};

namespace {

// Records the gradient that arrives at a node. The node owns the hook, so the hook must not own the
// node.
template <typename Begin>
class Note final : public torch::autograd::FunctionPreHook {
 public:
  explicit Note(std::weak_ptr<Begin> begin) : begin_(std::move(begin)) {}
  SplitBackward::Gradients operator()(const SplitBackward::Gradients& gradients) override {
    if (auto begin = begin_.lock()) begin->gradients = gradients;
    return gradients;
  }

 private:
  std::weak_ptr<Begin> begin_;
};

}  // namespace

SplitBackward::Gradients SplitBackward::input_gradients(const Edges& roots,
                                                        const Gradients& gradients,
                                                        const Gradients& inputs) {
  std::unordered_set<Node*> targets;
  Edges input_edges;
  for (const at::Tensor& input : inputs) {
    input_edges.push_back(torch::autograd::impl::gradient_edge(input));
    targets.insert(input_edges.back().function.get());
  }
  const WaysTo inputs_of(roots, std::move(targets));
  Edges asked;
  Gradients asked_gradients;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const bool is_asked = inputs_of.has(roots[i].function.get());
    (is_asked ? asked : roots_).push_back(roots[i]);
    (is_asked ? asked_gradients : root_gradients_).push_back(gradients[i]);
  }
  if (asked.empty()) return Gradients(inputs.size());
  for (Node* node : inputs_of.nodes()) {
    if (!inputs_of.has(node)) continue;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid() || inputs_of.has(edge.function.get())) continue;
      begins_.push_back(std::make_shared<Begin>(node->getptr()));
      node->add_pre_hook(std::make_unique<Note<Begin>>(begins_.back()));
      break;
    }
  }
  Gradients result = Engine::get_default_engine().execute(
      asked, asked_gradients, /*keep_graph=*/true, /*create_graph=*/false,
      /*accumulate_grad=*/false, input_edges);
  take_hooks();
  for (Node* node : inputs_of.nodes())
    for (Edge& edge : node->next_edges())
      if (edge.is_valid() && inputs_of.has(edge.function.get())) edge = Edge();
  return result;
}

// The hooks of these nodes have returned the gradients in begins_. The second part passes these
// gradients to the same nodes, whose hooks must not change them again.
void SplitBackward::take_hooks() {
  for (const auto& begin : begins_) {
    if (begin->gradients.empty()) continue;  // did not run
    begin->node->pre_hooks().clear();
    begin->node->tensor_pre_hooks().clear();
    begin->node->retains_grad_hooks().clear();
  }
}

void SplitBackward::weight_gradients() {
  for (const auto& begin : begins_)
    for (std::size_t i = 0; i < begin->gradients.size(); ++i)
      if (begin->gradients[i].defined()) {
        roots_.emplace_back(begin->node, static_cast<std::uint32_t>(i));
        root_gradients_.push_back(std::move(begin->gradients[i]));
      }
  begins_.clear();
  if (!roots_.empty()) backward(roots_, root_gradients_);
  roots_.clear();
  root_gradients_.clear();
}

void backward(const SplitBackward::Edges& roots, const SplitBackward::Gradients& gradients) {
  Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                       /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace lockstep::pipeline
