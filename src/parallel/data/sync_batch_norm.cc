#include <lockstep/parallel/data/sync_batch_norm.h>

#include "base/check.h"
#include "parallel/data/sync_layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <mutex>
#include <utility>

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
// covers keys below autograd, which InferenceMode uses.
void take_batch_norm() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU,
                     c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CUDA}) {
      auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      library->impl("batch_norm", &batch_norm);
    }
  });
}

}  // namespace

class SyncBatchNorm::State {
 public:
  State(std::shared_ptr<torch::nn::Module> the_module, const Group& group)
      : module(std::move(the_module)), layers(*module, group) {}
  const std::shared_ptr<torch::nn::Module> module;
  SyncLayers layers;
};

SyncBatchNorm::SyncBatchNorm(const ModuleRef& module, const Ranks& ranks)
    : state_(std::make_shared<State>(module.shared("SyncBatchNorm"), ranks.group())) {
  take_batch_norm();
}

SyncBatchNorm::SyncBatchNorm(SyncBatchNorm&&) noexcept = default;
SyncBatchNorm::~SyncBatchNorm() = default;

std::vector<std::string> SyncBatchNorm::layers() const {
  std::vector<std::string> names;
  for (const auto& layer : state_->layers.layers()) names.push_back(layer->name);
  return names;
}

Joinable& SyncBatchNorm::joinable() { return state_->layers; }

}  // namespace lockstep
