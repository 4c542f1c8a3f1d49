// A sharded unit in one screen of code, with a wrapper around a module instead of a dispatch key:
// gather, forward(), release; gather again when the output's gradient arrives. It is the reference
// for fully_shard(), which needs no wrapper. Only for modules with one input and one output tensor
// whose parameters are float and all take part.
#pragma once

#include "layout/flat_layout.h"
#include "module/tensors.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/native/Resize.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::test {

template <typename Block>
class WrappedUnit {
 public:
  WrappedUnit(std::shared_ptr<Block> block, Group group)
      : block_(std::move(block)),
        group_(std::move(group)),
        parameters_(unique_parameters(*block_)),
        layout_(layout_of(parameters_, group_.size())),
        whole_(at::zeros({layout_.numel()})) {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& tensor = parameters_[i].tensor;
      const auto& entry = layout_.entry(static_cast<int>(i));
      at::Tensor place =
          at::empty({0}).set_(whole_.storage(), entry.offset, tensor.sizes(), tensor.strides());
      tensor.set_data(place.copy_(tensor));
    }
    shard_ = whole_.chunk(group_.size())[static_cast<std::size_t>(group_.rank())].clone();
    release();
  }

  at::Tensor forward(const at::Tensor& input) {
    gather();
    at::Tensor output = block_->forward(input);
    release();
    output.register_hook([this](const at::Tensor& gradient) {
      gather();
      return gradient;
    });
    return output;
  }

  // Call after backward(): returns this rank's shard of the averaged gradient.
  at::Tensor reduced_gradient() {
    at::Tensor gradients = at::zeros({layout_.numel()});
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& entry = layout_.entry(static_cast<int>(i));
      gradients.narrow(0, entry.offset, entry.numel)
          .copy_(parameters_[i].tensor.grad().reshape({-1}));
      parameters_[i].tensor.mutable_grad().reset();
    }
    release();
    at::Tensor mine = at::empty_like(shard_);
    group_.reduce_scatter(mine, gradients, Op::average).wait();
    return mine;
  }

  at::Tensor shard() const { return shard_; }
  std::vector<layout::FlatSlice> owned() const {
    return layout::owned_slices(layout_, group_.size(), group_.rank());
  }

 private:
  static layout::FlatLayout layout_of(const std::vector<NamedParameter>& parameters, int world) {
    std::vector<layout::TensorSpec> specs;
    for (const auto& parameter : parameters) specs.push_back(modules::spec_of(parameter));
    return layout::unit_layout(specs, world);
  }

  void gather() {
    torch::NoGradGuard no_grad;
    at::native::resize_bytes_cpu(whole_.storage().unsafeGetStorageImpl(), whole_.nbytes());
    group_.all_gather(whole_, shard_).wait();
  }
  void release() { at::native::resize_bytes_cpu(whole_.storage().unsafeGetStorageImpl(), 0); }

  std::shared_ptr<Block> block_;
  Group group_;
  std::vector<NamedParameter> parameters_;
  layout::FlatLayout layout_;
  at::Tensor whole_;
  at::Tensor shard_;
};

}  // namespace lockstep::test
