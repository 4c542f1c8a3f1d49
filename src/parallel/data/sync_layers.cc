#include "parallel/data/sync_layers.h"

#include "base/check.h"
#include "module/checks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>

#include <map>
#include <utility>

namespace lockstep::data_parallel {
namespace {

struct Registry {
  std::map<const void*, std::weak_ptr<SyncLayer>> layers LOCKSTEP_GUARDED_BY(mutex);
  Mutex mutex;
};

// Never destroyed: threads may still compute when the process ends.
Registry& registry() {
  static auto* one = new Registry;
  return *one;
}

std::vector<const void*> keys_of(const SyncLayer& layer) {
  std::vector<const void*> keys;
  for (const at::Tensor* tensor : {&layer.running_mean, &layer.weight})
    if (tensor->defined()) keys.push_back(tensor->unsafeGetTensorImpl());
  return keys;
}

template <class Norm>
std::shared_ptr<SyncLayer> layer_of(const std::string& name, torch::nn::Module& module) {
  auto* norm = dynamic_cast<Norm*>(&module);
  if (norm == nullptr) return nullptr;
  auto layer = std::make_shared<SyncLayer>();
  *layer = {.name = name,
            .module = norm,
            .weight = norm->weight,
            .bias = norm->bias,
            .running_mean = norm->running_mean,
            .running_var = norm->running_var,
            .batches = norm->num_batches_tracked,
            .channels = norm->options.num_features(),
            .momentum = [norm] { return std::optional(norm->options.momentum()); },
            .eps = norm->options.eps()};
  return layer;
}

std::vector<std::shared_ptr<SyncLayer>> layers_in(torch::nn::Module& module) {
  std::vector<std::shared_ptr<SyncLayer>> layers;
  auto add = [&](const std::string& name, torch::nn::Module& one) {
    auto layer = layer_of<torch::nn::BatchNorm1dImpl>(name, one);
    if (!layer) layer = layer_of<torch::nn::BatchNorm2dImpl>(name, one);
    if (!layer) layer = layer_of<torch::nn::BatchNorm3dImpl>(name, one);
    if (layer) layers.push_back(std::move(layer));
  };
  add("the module", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(item.key(), *item.value());
  return layers;
}

std::string line_of(const SyncLayer& layer) {
  return formatted("layer {}: {} channels, momentum {}, eps {}", layer.name, layer.channels,
                   layer.momentum().value_or(-1), layer.eps);
}

void update(at::Tensor& running, const at::Tensor& value, double factor) {
  if (running.defined()) running.mul_(1 - factor).add_(value.to(running.options()), factor);
}

}  // namespace

std::shared_ptr<SyncLayer> find_sync_layer(const at::Tensor& running_mean,
                                           const at::Tensor& weight) {
  Registry& all = registry();
  Lock lock(all.mutex);
  for (const at::Tensor* tensor : {&running_mean, &weight}) {
    if (!tensor->defined()) continue;
    auto found = all.layers.find(tensor->unsafeGetTensorImpl());
    if (found != all.layers.end()) return found->second.lock();
  }
  return nullptr;
}

SyncLayers::SyncLayers(torch::nn::Module& module, const Group& group)
    : group_(group), layers_(layers_in(module)) {
  std::vector<std::string> lines;
  for (const auto& layer : layers_) lines.push_back(line_of(*layer));
  modules::check_same_lines(group, lines, {.tag = "SyncBatchNorm"});
  check(!layers_.empty(), "SyncBatchNorm: the module has no BatchNorm1d, 2d or 3d");
  for (const auto& layer : layers_) {
    check(!keys_of(*layer).empty(),
          "SyncBatchNorm: {} has neither weights nor running statistics, so its calls cannot be "
          "recognised",
          layer->name);
    check(find_sync_layer(layer->running_mean, layer->weight) == nullptr,
          "SyncBatchNorm: {} already belongs to another SyncBatchNorm", layer->name);
  }
  group_ = group.split(0);
  Registry& all = registry();
  Lock lock(all.mutex);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->owner = this;
    layers_[i]->number = static_cast<int>(i);
    for (const void* key : keys_of(*layers_[i])) all.layers[key] = layers_[i];
  }
}

SyncLayers::~SyncLayers() {
  Registry& all = registry();
  Lock lock(all.mutex);
  for (const auto& layer : layers_)
    for (const void* key : keys_of(*layer)) all.layers.erase(key);
}

void SyncLayers::set_join(std::shared_ptr<JoinLink> link) {
  Lock lock(mutex_);
  link_ = std::move(link);
}

void SyncLayers::announce(const SyncLayer& layer, Direction direction) {
  std::shared_ptr<JoinLink> link;
  {
    Lock lock(mutex_);
    link = link_;
  }
  if (link) (void)link->announce(*this, 2 * layer.number + direction);
}

SyncLayers::Whole SyncLayers::combine(SyncLayer& layer, double rows, const at::Tensor& mean,
                                      const at::Tensor& squares, double factor) {
  announce(layer, forward);
  return exchange(layer, rows, mean, squares, factor);
}

SyncLayers::Whole SyncLayers::exchange(SyncLayer& layer, double rows, const at::Tensor& mean,
                                       const at::Tensor& squares, double factor) {
  at::Tensor count = at::empty({1}, mean.options()).fill_(rows);
  at::Tensor own = at::cat({mean, squares, count});
  at::Tensor all = at::empty({group_.size(), own.numel()}, own.options());
  group_.all_gather(all, own, {.tag = layer.name}).synchronize();
  at::Tensor means = all.narrow(1, 0, layer.channels);
  at::Tensor squares_of = all.narrow(1, layer.channels, layer.channels);
  at::Tensor counts = all.narrow(1, 2 * layer.channels, 1);
  Whole whole{.rows = counts.sum().item<double>(), .mean = mean, .variance = squares};
  if (whole.rows == 0) return whole;
  check(whole.rows > 1,
        "SyncBatchNorm: {} got one value per channel over all ranks; a variance needs two",
        layer.name);
  whole.mean = (means * counts).sum(0) / whole.rows;
  at::Tensor sum = (squares_of + counts * (means - whole.mean).square()).sum(0);
  whole.variance = sum / whole.rows;
  update(layer.running_mean, whole.mean, factor);
  update(layer.running_var, sum / (whole.rows - 1), factor);
  return whole;
}

void SyncLayers::sum(const SyncLayer& layer, const at::Tensor& sums) {
  announce(layer, backward);
  post_sum(layer, sums);
}

void SyncLayers::post_sum(const SyncLayer& layer, const at::Tensor& sums) {
  group_.all_reduce(sums, Op::sum, {.tag = layer.name + " backward"}).wait();
}

// Takes part with a batch without rows.
bool SyncLayers::shadow(int round, const JoinRound& /*ranks*/) {
  at::NoGradGuard no_grad;
  SyncLayer& layer = *layers_.at(static_cast<std::size_t>(round / 2));
  const at::Tensor& like = layer.weight.defined() ? layer.weight : layer.running_mean;
  at::Tensor zeros = at::zeros({layer.channels}, like.options().dtype(at::kDouble));
  if (round % 2 == backward) {
    post_sum(layer, at::cat({zeros, zeros}));
    return false;
  }
  const std::optional<double> momentum = layer.momentum();
  double factor = momentum.value_or(0);
  if (layer.batches.defined()) {
    layer.batches += 1;
    if (!momentum) factor = 1 / layer.batches.item<double>();
  }
  (void)exchange(layer, 0, zeros, zeros, factor);
  return false;
}

}  // namespace lockstep::data_parallel
