#include <lockstep/parallel/data/communication_hook.h>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"

#include <lockstep/comm/group.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <optional>
#include <string>
#include <utility>

namespace lockstep {
namespace {

// Averages in place. Half precision is divided before the sum, which could overflow.
[[nodiscard]] Work post_average(const at::Tensor& tensor, Group& group, const std::string& tag,
                                std::optional<Duration> timeout) {
  const CallOptions call{.tag = tag, .timeout = timeout};
  if (tensor.scalar_type() != at::kHalf) return group.all_reduce(tensor, Op::average, call);
  tensor.div_(group.size());
  return group.all_reduce(tensor, Op::sum, call);
}

}  // namespace

GradientBucket::GradientBucket(std::string name, int number, bool is_last, at::Tensor buffer,
                               std::shared_ptr<const std::vector<BucketEntry>> places,
                               std::optional<Duration> timeout)
    : name_(std::move(name)),
      number_(number),
      is_last_(is_last),
      buffer_(std::move(buffer)),
      places_(std::move(places)),
      timeout_(timeout) {}

at::Tensor GradientBucket::gradient(int i) const {
  const BucketEntry& own = place(i);
  return buffer_.as_strided(own.sizes, own.strides, buffer_.storage_offset() + own.offset);
}

GradientBucket GradientBucket::with_buffer(at::Tensor buffer) const {
  check(buffer.dim() == 1 && buffer.numel() == buffer_.numel() && buffer.is_contiguous(),
        "{}: a new buffer must have one dim of size {}", name_, buffer_.numel());
  return {name_, number_, is_last_, std::move(buffer), places_, timeout_};
}

BucketFuture::BucketFuture(at::Tensor values, std::vector<Work> works)
    : values_(std::move(values)), works_(std::move(works)) {}

BucketFuture BucketFuture::then(Next next) && {
  next_.push_back(std::move(next));
  return std::move(*this);
}

void BucketFuture::wait() {
  std::vector<Work> works = std::exchange(works_, {});
  for (Work& work : works) work.wait();
}

bool BucketFuture::advance() {
  wait();
  if (next_.empty()) return false;
  Next next = std::move(next_.front());
  next_.pop_front();
  BucketFuture result = next(values_);
  values_ = std::move(result.values_);
  works_ = std::move(result.works_);
  next_.insert(next_.begin(), std::make_move_iterator(result.next_.begin()),
               std::make_move_iterator(result.next_.end()));
  return true;
}

void CommunicationHook::load_state(const std::map<std::string, at::Tensor>& state) {
  check_input(state.empty(), "communication hook {}: expected no state, found {}", describe(),
              state.begin()->first);
}

BucketFuture average_of(const GradientBucket& bucket, Group& group) {
  return {bucket.buffer(), {post_average(bucket.buffer(), group, bucket.name(), bucket.timeout())}};
}

namespace {

class FunctionHook final : public CommunicationHook {
 public:
  using Run = std::function<BucketFuture(const GradientBucket&, Group&)>;
  FunctionHook(std::string name, Run run) : name_(std::move(name)), run_(std::move(run)) {
    check(run_ != nullptr, "hook_of {}: the function is empty", name_);
  }
  [[nodiscard]] std::string describe() const override { return name_; }
  [[nodiscard]] BucketFuture run(const GradientBucket& bucket, Group& group) override {
    return run_(bucket, group);
  }

 private:
  std::string name_;
  Run run_;
};

class CastHook final : public CommunicationHook {
 public:
  CastHook(std::string name, at::ScalarType dtype, std::shared_ptr<CommunicationHook> inner)
      : name_(std::move(name)), dtype_(dtype), inner_(std::move(inner)) {
    check(inner_ != nullptr, "{}: the hook in it is null", name_);
  }

  [[nodiscard]] std::string describe() const override {
    return formatted("{}({})", name_, inner_->describe());
  }
  void attach(std::span<const NamedParameter> parameters) override { inner_->attach(parameters); }
  [[nodiscard]] std::map<std::string, at::Tensor> state() const override { return inner_->state(); }
  void load_state(const std::map<std::string, at::Tensor>& state) override {
    inner_->load_state(state);
  }
  [[nodiscard]] bool averages_over_all() const override { return inner_->averages_over_all(); }
  [[nodiscard]] bool models_may_differ() const override { return inner_->models_may_differ(); }
  void models_are_equal(const Group& group) override { inner_->models_are_equal(group); }

  [[nodiscard]] BucketFuture run(const GradientBucket& bucket, Group& group) override {
    const at::Tensor& wide = bucket.buffer();
    if (wide.element_size() <= 2) return inner_->run(bucket, group);
    GradientBucket narrow = bucket.with_buffer(wide.to(dtype_));
    return inner_->run(narrow, group).then([wide](const at::Tensor& averages) -> BucketFuture {
      // The caller checks all results and names a tensor of another shape.
      if (averages.sizes() != wide.sizes()) return averages;
      return wide.copy_(averages);
    });
  }

 private:
  std::string name_;
  at::ScalarType dtype_;
  std::shared_ptr<CommunicationHook> inner_;
};

}  // namespace

std::shared_ptr<CommunicationHook> average_hook() { return hook_of("average", average_of); }

std::shared_ptr<CommunicationHook> bf16_compression(std::shared_ptr<CommunicationHook> inner) {
  return std::make_shared<CastHook>("bf16_compression", at::kBFloat16, std::move(inner));
}

std::shared_ptr<CommunicationHook> fp16_compression(std::shared_ptr<CommunicationHook> inner) {
  return std::make_shared<CastHook>("fp16_compression", at::kHalf, std::move(inner));
}

std::shared_ptr<CommunicationHook> hook_of(
    std::string name, std::function<BucketFuture(const GradientBucket&, Group&)> run) {
  return std::make_shared<FunctionHook>(std::move(name), std::move(run));
}

namespace {

struct Shape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  [[nodiscard]] std::int64_t numel() const { return rows * columns; }
};

// Returns the shape of a gradient as a matrix; std::nullopt if it is not a matrix.
std::optional<Shape> shape_of(at::IntArrayRef sizes) {
  std::int64_t numel = c10::multiply_integers(sizes);
  if (sizes.size() < 2 || numel == 0) return std::nullopt;
  return Shape{sizes[0], numel / sizes[0]};
}

at::Tensor orthonormal(const at::Tensor& matrix) {
  return std::get<0>(at::linalg_qr(matrix, "reduced"));
}

class PowerSgd final : public CommunicationHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options) {
    check(options.rank >= 1, "power_sgd: rank must be at least 1, found {}", options.rank);
    check(options.start_step >= 0, "power_sgd: start_step must be at least 0, found {}",
          options.start_step);
    check(options.min_compression_rate >= 1,
          "power_sgd: min_compression_rate must be at least 1, found {}",
          options.min_compression_rate);
  }

  [[nodiscard]] std::string describe() const override {
    return formatted(
        "power_sgd(rank {}, start_step {}, min_compression_rate {}, error feedback {}, warm start "
        "{}, seed {})",
        options_.rank, options_.start_step, options_.min_compression_rate,
        options_.use_error_feedback, options_.warm_start, options_.seed);
  }

  void attach(std::span<const NamedParameter> parameters) override {
    check(!std::exchange(is_attached_, true), "power_sgd: the hook belongs to another handle");
    std::pair<std::string, Shape> largest;
    bool compresses_any = false;
    for (const NamedParameter& parameter : parameters) {
      std::vector<std::int64_t> sizes = parameter.tensor.sizes().vec();
      if (parameter.tensor.is_complex()) sizes.push_back(2);
      auto shape = shape_of(sizes);
      if (!shape) continue;
      attached_.emplace(parameter.name, *shape);
      compresses_any = compresses_any || compresses(*shape);
      if (shape->numel() > largest.second.numel()) largest = {parameter.name, *shape};
    }
    check(!attached_.empty(), "power_sgd: no parameter has two dims, so nothing can be compressed");
    const auto& [name, shape] = largest;
    check(compresses_any,
          "power_sgd: rank {} is too large for every parameter: the largest, {}, is {} x {}, and "
          "would travel as {} numbers instead of {} (min_compression_rate {})",
          options_.rank, name, shape.rows, shape.columns,
          options_.rank * (shape.rows + shape.columns), shape.numel(),
          options_.min_compression_rate);
  }

  [[nodiscard]] BucketFuture run(const GradientBucket& bucket, Group& group) override {
    std::int64_t step = step_;
    if (bucket.is_last()) ++step_;
    if (step < options_.start_step) return average_of(bucket, group);
    auto pass = std::make_shared<Pass>(split(bucket, group, step));
    std::vector<Work> works = post(*pass, &Matrix::p, "P");
    if (!pass->exact.empty()) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& gradient : pass->exact) parts.push_back(gradient.reshape({-1}));
      pass->exact_payload = at::cat(parts);
      works.push_back(post_average(pass->exact_payload, group,
                                   formatted("rest of {}", bucket.name()), bucket.timeout()));
    }
    return BucketFuture(bucket.buffer(), std::move(works))
        .then([pass](const at::Tensor& buffer) -> BucketFuture {
          receive(*pass, &Matrix::p);
          for (Matrix& matrix : pass->matrices) {
            matrix.p = orthonormal(matrix.p);
            matrix.q = at::mm(matrix.values.t(), matrix.p);
          }
          return {buffer, post(*pass, &Matrix::q, "Q")};
        })
        .then([pass, this](const at::Tensor& buffer) -> BucketFuture {
          receive(*pass, &Matrix::q);
          write_back(*pass);
          return buffer;
        });
  }

  [[nodiscard]] std::map<std::string, at::Tensor> state() const override {
    std::map<std::string, at::Tensor> state;
    for (const auto& [name, error] : errors_) state.emplace("error." + name, error.clone());
    for (const auto& [name, q] : qs_) state.emplace("q." + name, q.clone());
    state.emplace("step", at::empty({1}, at::kLong).fill_(step_));
    return state;
  }

  void load_state(const std::map<std::string, at::Tensor>& state) override {
    auto step = state.find("step");
    check_input(step != state.end() && step->second.numel() == 1, "power_sgd: state has no step");
    check_input(step->second.scalar_type() == at::kLong && step->second.item<std::int64_t>() >= 0,
                "power_sgd: step of the state: expected an integer of at least 0, found {} {}",
                c10::toString(step->second.scalar_type()), step->second.item<double>());
    std::map<std::string, at::Tensor> errors, qs;
    for (const auto& [name, tensor] : state) {
      if (name == "step") continue;
      check_loaded(name, tensor);
      if (name.starts_with("error.")) {
        errors.emplace(name.substr(6), tensor.detach().clone());
      } else {
        qs.emplace(name.substr(2), tensor.detach().clone());
      }
    }
    errors_ = std::move(errors);
    qs_ = std::move(qs);
    step_ = step->second.item<std::int64_t>();
  }

 private:
  struct Matrix {
    std::string name;
    Shape shape;
    at::Tensor gradient;  // its place in the bucket
    at::Tensor values;    // plus the error of the last step
    at::Tensor p, q;
  };

  // The state of one bucket in one step.
  struct Pass {
    Pass(const GradientBucket& bucket, const Group& group) : bucket(bucket), group(group) {}
    GradientBucket bucket;
    Group group;
    std::vector<Matrix> matrices;
    std::vector<at::Tensor> exact;  // gradients that are not compressed
    at::Tensor payload, exact_payload;
  };

  [[nodiscard]] bool compresses(const Shape& shape) const {
    auto sent = static_cast<double>(options_.rank * (shape.rows + shape.columns));
    return sent * options_.min_compression_rate < static_cast<double>(shape.numel());
  }

  [[nodiscard]] Matrix matrix_of(const std::string& name, Shape shape, const at::Tensor& gradient,
                                 std::int64_t step) const {
    Matrix matrix{
        .name = name, .shape = shape, .gradient = gradient, .values = {}, .p = {}, .q = {}};
    // The arithmetic uses at least float32.
    auto dtype = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    matrix.values = gradient.reshape({shape.rows, shape.columns}).to(dtype);
    auto error = errors_.find(name);
    if (error != errors_.end() && error->second.sizes() == matrix.values.sizes())
      matrix.values = matrix.values + error->second.to(matrix.values.options());
    else if (matrix.values.is_alias_of(gradient))
      matrix.values = matrix.values.clone();
    matrix.q = first_q(matrix, step);
    matrix.p = at::mm(matrix.values, matrix.q);
    return matrix;
  }

  [[nodiscard]] at::Tensor first_q(const Matrix& matrix, std::int64_t step) const {
    auto found = qs_.find(matrix.name);
    auto options = matrix.values.options();
    if (options_.warm_start && found != qs_.end() &&
        found->second.sizes() == at::IntArrayRef({matrix.shape.columns, options_.rank}))
      return found->second.to(options);
    std::uint64_t seed = fingerprint_of(options_.seed, step, fingerprint(matrix.name));
    at::Tensor drawn = at::randn({matrix.shape.columns, options_.rank},
                                 at::detail::createCPUGenerator(seed), options.device(at::kCPU));
    return orthonormal(drawn).to(options);
  }

  [[nodiscard]] Pass split(const GradientBucket& bucket, const Group& group,
                           std::int64_t step) const {
    Pass pass(bucket, group);
    for (int i = 0; i < bucket.size(); ++i) {
      at::Tensor gradient = bucket.gradient(i);
      auto shape = shape_of(gradient.sizes());
      if (shape && compresses(*shape)) {
        pass.matrices.push_back(matrix_of(bucket.parameter(i).name, *shape, gradient, step));
      } else {
        pass.exact.push_back(gradient);
      }
    }
    return pass;
  }

  // Posts one factor of all matrices, in the bucket's dtype.
  static std::vector<Work> post(Pass& pass, at::Tensor Matrix::*factor, const char* name) {
    if (pass.matrices.empty()) return {};
    std::vector<at::Tensor> parts;
    for (Matrix& matrix : pass.matrices) parts.push_back((matrix.*factor).reshape({-1}));
    pass.payload = at::cat(parts).to(pass.bucket.buffer().scalar_type());
    return {post_average(pass.payload, pass.group, formatted("{} of {}", name, pass.bucket.name()),
                         pass.bucket.timeout())};
  }

  static void receive(Pass& pass, at::Tensor Matrix::*factor) {
    std::int64_t begin = 0;
    for (Matrix& matrix : pass.matrices) {
      at::Tensor& values = matrix.*factor;
      at::Tensor averages = pass.payload.narrow(0, begin, values.numel());
      begin += values.numel();
      values = averages.view(values.sizes()).to(values.scalar_type());
    }
  }

  void write_back(Pass& pass) {
    // On a device, this waits once for all matrices; only if a value is not finite, for each.
    const bool are_finite = !pass.matrices.empty() && at::isfinite(pass.payload).all().item<bool>();
    for (Matrix& matrix : pass.matrices) {
      at::Tensor product = at::mm(matrix.p, matrix.q.t());
      if (are_finite || at::isfinite(matrix.q).all().item<bool>()) {
        if (options_.use_error_feedback) errors_[matrix.name] = matrix.values.sub_(product);
        if (options_.warm_start) qs_[matrix.name] = matrix.q.clone();
      }
      matrix.gradient.copy_(product.view(matrix.gradient.sizes()));
    }
    std::int64_t begin = 0;
    for (at::Tensor& gradient : pass.exact) {
      gradient.copy_(pass.exact_payload.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
      begin += gradient.numel();
    }
  }

  void check_loaded(const std::string& name, const at::Tensor& tensor) const {
    bool is_error = name.starts_with("error.");
    bool is_known = is_error || name.starts_with("q.");
    auto found = is_known ? attached_.find(name.substr(is_error ? 6 : 2)) : attached_.end();
    check_input(found != attached_.end(), "power_sgd: state has an unknown tensor {}", name);
    auto [rows, columns] = found->second;
    std::vector<std::int64_t> sizes =
        is_error ? std::vector{rows, columns} : std::vector{columns, options_.rank};
    check_input(tensor.sizes() == at::IntArrayRef(sizes),
                "power_sgd: {} of the state: expected shape [{}], found [{}]", name,
                listed(sizes, ", "), listed(tensor.sizes(), ", "));
  }

  PowerSgdOptions options_;
  std::map<std::string, Shape> attached_;  // parameters that are matrices
  bool is_attached_ = false;
  std::int64_t step_ = 0;
  std::map<std::string, at::Tensor> errors_, qs_;  // by parameter
};

}  // namespace

std::shared_ptr<CommunicationHook> power_sgd(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgd>(options);
}

}  // namespace lockstep
