#include <lockstep/parallel/data/communication_hook.h>

#include "base/check.h"
#include "base/format.h"
#include "parallel/data/hook_average.h"

#include <utility>

namespace lockstep {

GradientBucket::GradientBucket(std::string name, int number, bool is_last, at::Tensor buffer,
                               std::shared_ptr<const std::vector<Place>> places,
                               std::optional<Duration> timeout)
    : name_(std::move(name)),
      number_(number),
      is_last_(is_last),
      buffer_(std::move(buffer)),
      places_(std::move(places)),
      timeout_(timeout) {}

at::Tensor GradientBucket::gradient(int i) const {
  const Place& own = place(i);
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
  return {bucket.buffer(),
          {data_parallel::post_average(bucket.buffer(), group, bucket.name(), bucket.timeout())}};
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
      // The caller, which checks all results, refuses tensors of another shape by name.
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

}  // namespace lockstep
