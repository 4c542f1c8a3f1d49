#include <lockstep/parallel/data/sync_batch_norm.h>

#include "base/check.h"
#include "base/mutex.h"
#include "base/never_destroyed.h"
#include "dispatch/devices.h"
#include "module/checks.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/join.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::data_parallel {
namespace {

// SyncLayers: the layers of one SyncBatchNorm, and their computation over all ranks.
//
// A process-wide registry finds a layer by its weight or its running mean; aten::batch_norm uses it
// in training (sync_batch_norm.cc).
class SyncLayers;

struct SyncLayer {
  std::string name;
  const torch::nn::Module* module = nullptr;
  at::Tensor weight, bias, running_mean, running_var, batches;  // undefined if the layer has none
  std::int64_t channels = 0;
  std::function<std::optional<double>()> momentum;  // the layer's current option
  double eps = 0;                                   // at construction; a call passes its own

  SyncLayers* owner = nullptr;
  int number = 0;
};

struct Registry {
  std::map<const void*, std::weak_ptr<SyncLayer>> layers LOCKSTEP_GUARDED_BY(mutex);
  Mutex mutex;
};

Registry& registry() {
  static NeverDestroyed<Registry> one;
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

// Returns the layer with one of these tensors; null if there is no such layer.
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

class SyncLayers : public Joinable {
 public:
  // Statistics of the whole batch, in float64, per channel.
  struct Whole {
    double rows = 0;  // of all ranks
    at::Tensor mean, variance;
  };

  // Collective. Handles the layers of `module`.
  SyncLayers(std::shared_ptr<torch::nn::Module> module, const Group& group)
      : module_(std::move(module)), group_(group), layers_(layers_in(*module_)) {
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

  ~SyncLayers() override {
    Registry& all = registry();
    Lock lock(all.mutex);
    for (const auto& layer : layers_)
      for (const void* key : keys_of(*layer)) all.layers.erase(key);
  }

  SyncLayers(const SyncLayers&) = delete;
  SyncLayers& operator=(const SyncLayers&) = delete;

  [[nodiscard]] const std::vector<std::shared_ptr<SyncLayer>>& layers() const { return layers_; }

  // Collective. `mean` and `squares`: the mean of this rank's rows, and the squared deviations from
  // it. `factor` is the weight of this batch in the running statistics, which are updated.
  [[nodiscard]] Whole combine(SyncLayer& layer, double rows, const at::Tensor& mean,
                              const at::Tensor& squares, double factor) {
    announce(layer, forward);
    return exchange(layer, rows, mean, squares, factor);
  }

  // Collective. Sums over the ranks in place.
  void sum(const SyncLayer& layer, const at::Tensor& sums) {
    announce(layer, backward);
    post_sum(layer, sums);
  }

  [[nodiscard]] std::string join_name() const override { return "SyncBatchNorm"; }
  [[nodiscard]] const Group& join_group() const override { return group_; }

  void set_join(std::shared_ptr<JoinLink> link) override {
    Lock lock(mutex_);
    link_ = std::move(link);
  }

  // Takes part with a batch without rows.
  [[nodiscard]] bool shadow(int round, const JoinRound& /*ranks*/) override {
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

 private:
  enum Direction { forward, backward };

  void announce(const SyncLayer& layer, Direction direction) {
    std::shared_ptr<JoinLink> link;
    {
      Lock lock(mutex_);
      link = link_;
    }
    if (link) (void)link->announce(*this, 2 * layer.number + direction);
  }

  void post_sum(const SyncLayer& layer, const at::Tensor& sums) {
    group_.all_reduce(sums, Op::sum, {.tag = layer.name + " backward"}).wait();
  }

  [[nodiscard]] Whole exchange(SyncLayer& layer, double rows, const at::Tensor& mean,
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

  const std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  std::vector<std::shared_ptr<SyncLayer>> layers_;
  Mutex mutex_;
  std::shared_ptr<JoinLink> link_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

}  // namespace lockstep::data_parallel

namespace lockstep {
namespace {

using data_parallel::SyncLayer;
using data_parallel::SyncLayers;
using Optional = std::optional<at::Tensor>;

// Returns all dims except the channel dim.
std::vector<std::int64_t> row_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

// Reshapes values of [C] so that they broadcast over `input`.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

at::ScalarType arithmetic_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

SyncLayers::Whole statistics(SyncLayer& layer, const at::Tensor& input, double factor) {
  const std::int64_t elements = input.numel() / layer.channels;  // per channel
  auto rows = static_cast<double>(elements);
  auto options = input.options().dtype(at::kDouble).memory_format(std::nullopt);
  at::Tensor mean = at::zeros({layer.channels}, options), squares = mean;
  if (rows > 0) {
    auto [variance, own_mean] = at::var_mean(input.to(arithmetic_of(input)), row_dims(input),
                                             /*correction=*/0, /*keepdim=*/false);
    mean = own_mean.to(at::kDouble);
    squares = variance.to(at::kDouble) * rows;
  }
  return layer.owner->combine(layer, rows, mean, squares, factor);
}

struct Normalize : torch::autograd::Function<Normalize> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const Optional& weight, const Optional& bias,
                            const std::shared_ptr<SyncLayer>& layer, double factor, double eps) {
    SyncLayers::Whole whole = statistics(*layer, input, factor);
    auto dtype = arithmetic_of(input);
    at::Tensor mean = whole.mean.to(dtype), variance = whole.variance.to(dtype);
    at::Tensor scale = (variance + eps).rsqrt();
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, scale});
    context->saved_data["rows"] = whole.rows;
    context->saved_data["layer"] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(layer));
    if (input.numel() == 0) return at::empty_like(input);
    // Kernels for narrow inputs accept float32 statistics only with some weights.
    auto wide = [dtype](const Optional& tensor) -> Optional {
      if (!tensor || !tensor->defined()) return std::nullopt;
      return tensor->to(dtype);
    };
    return std::get<0>(at::native_batch_norm(input.to(dtype), wide(weight), wide(bias), mean,
                                             variance, /*training=*/false, 0, eps))
        .to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outputs) {
    auto layer = c10::static_intrusive_pointer_cast<Saved>(context->saved_data["layer"].toCapsule())
                     ->layer.lock();
    check(layer != nullptr, "SyncBatchNorm: backward() needs it, but it was destroyed");
    check(!at::GradMode::is_enabled(),
          "SyncBatchNorm: {}: backward(create_graph=true) is not supported", layer->name);
    auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3];
    auto dtype = arithmetic_of(input);
    at::Tensor output = outputs[0].to(dtype);
    at::Tensor centered = input.to(dtype) - along_channels(mean, input);
    auto dims = row_dims(input);
    at::Tensor own = at::cat({output.sum(dims), (output * centered).sum(dims)});
    at::Tensor sums = own.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    layer->owner->sum(*layer, sums);
    double rows = context->saved_data["rows"].toDouble();
    at::Tensor means = (rows > 0 ? sums / rows : sums).to(dtype);
    std::int64_t count = layer->channels;
    at::Tensor slope = scale.square() * means.narrow(0, count, count);
    at::Tensor factor = weight.defined() ? scale * weight.to(dtype) : scale;
    at::Tensor input_gradient = (output - along_channels(means.narrow(0, 0, count), input) -
                                 centered * along_channels(slope, input)) *
                                along_channels(factor, input);
    at::Tensor weight_gradient, bias_gradient;
    if (weight.defined()) {
      weight_gradient = (own.narrow(0, count, count) * scale).to(weight.scalar_type());
      bias_gradient = own.narrow(0, 0, count).clone().to(weight.scalar_type());
    }
    return {input_gradient.to(input.scalar_type()),
            weight_gradient,
            bias_gradient,
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }

  struct Saved : torch::CustomClassHolder {
    explicit Saved(std::weak_ptr<SyncLayer> layer) : layer(std::move(layer)) {}
    std::weak_ptr<SyncLayer> layer;
  };
};

// Replaces aten::batch_norm.
at::Tensor batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias,
                      const Optional& running_mean, const Optional& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  std::shared_ptr<SyncLayer> layer;
  if (training)
    layer = data_parallel::find_sync_layer(running_mean.value_or(at::Tensor()),
                                           weight.value_or(at::Tensor()));
  if (layer == nullptr || !layer->module->is_training())
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training,
                                  momentum, eps, cudnn_enabled);
  return Normalize::apply(input, weight, bias, layer, momentum, eps);
}

// The registration lasts for the lifetime of the process, like LibTorch's own kernels. It also
// covers dispatch keys below autograd, which InferenceMode uses.
void take_batch_norm() {
  static const NeverDestroyed libraries([] {
    std::vector<torch::Library> made;
    for (const c10::BackendComponent device : dispatch::devices)
      for (const auto key :
           {dispatch::autograd_key(device),
            c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, device)})
        made.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__)
            .impl("batch_norm", &batch_norm);
    return made;
  }());
}

}  // namespace

class SyncBatchNorm::State final : public SyncLayers {
  using SyncLayers::SyncLayers;
};

SyncBatchNorm::SyncBatchNorm(const ModuleRef& module, const Ranks& ranks)
    : state_(std::make_shared<State>(module.shared("SyncBatchNorm"), ranks.group())) {
  take_batch_norm();
}

SyncBatchNorm::SyncBatchNorm(SyncBatchNorm&&) noexcept = default;
SyncBatchNorm::~SyncBatchNorm() = default;

std::vector<std::string> SyncBatchNorm::layers() const {
  std::vector<std::string> names;
  for (const auto& layer : state_->layers()) names.push_back(layer->name);
  return names;
}

Joinable& SyncBatchNorm::joinable() { return *state_; }

}  // namespace lockstep
