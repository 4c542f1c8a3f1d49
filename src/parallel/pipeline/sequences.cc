#include "parallel/pipeline/sequences.h"

#include "base/check.h"
#include "global/mesh_context.h"

#include <lockstep/global/tensor.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

namespace lockstep::pipeline {

CutSequences::CutSequences(const Mesh& tensors, Placement cut)
    : tensors_(tensors),
      dim_(cut.dim()),
      placements_(tensors.axes().size()),
      sums_(tensors.axes().size()) {
  const auto place = static_cast<std::size_t>(tensors.layout().axis("cp"));
  placements_[place] = cut;
  sums_[place] = Partial();
  GlobalOptions global = global::MeshContext::of(tensors_).options;
  global.replicate_plain = true;
  set_global_options(tensors_, global);
}

at::Tensor CutSequences::cut(const at::Tensor& whole) const {
  check(whole.defined() && !is_global(whole),
        "cut: expected a plain tensor, found {}; a batch is cut once",
        whole.defined() ? "a global one" : "an undefined one");
  check(whole.dim() > dim_,
        "cut: expected a tensor whose dim {} is the sequence (sequence_dim), found one of {} dims",
        dim_, whole.dim());
  return redistribute(from_local(whole, tensors_, Placements(placements_.size())), placements_);
}

// The length of the whole sequence is not known from one rank's part.
at::Tensor CutSequences::of_part(const at::Tensor& part) const {
  if (part.dim() <= dim_) return from_local(part, tensors_, sums_);
  at::Tensor length = at::tensor({part.size(dim_)}, at::kLong);
  tensors_["cp"].all_reduce(length, Op::sum, {.tag = "tokens of a stage"}).wait();
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(dim_)] = length.item<std::int64_t>();
  return from_local(part, tensors_, placements_, std::move(sizes));
}

at::Tensor CutSequences::part_of(const at::Tensor& output) const {
  const at::Tensor whole =
      is_global(output) ? output : from_local(output, tensors_, Placements(placements_.size()));
  return local_tensor(redistribute(whole, output.dim() > dim_ ? placements_ : sums_));
}

std::vector<Stage> CutSequences::stages(std::vector<Stage> stages) const {
  for (std::size_t i = 0; i < stages.size(); ++i)
    stages[i].forward = [own = *this, is_first = i == 0,
                         forward = std::move(stages[i].forward)](const Tensors& inputs) {
      Tensors given, parts;
      for (const at::Tensor& input : inputs)
        given.push_back(is_first ? own.cut(input) : own.of_part(input));
      for (const at::Tensor& output : forward(given)) parts.push_back(own.part_of(output));
      return parts;
    };
  return stages;
}

PipelineLoss CutSequences::loss(PipelineLoss loss) const {
  return [own = *this, loss = std::move(loss)](const Tensors& outputs, const Tensors& targets) {
    Tensors whole, cut;
    for (const at::Tensor& output : outputs) whole.push_back(own.of_part(output));
    for (const at::Tensor& target : targets) cut.push_back(own.cut(target));
    return loss(whole, cut);
  };
}

}  // namespace lockstep::pipeline
