#include "parallel/sharded/averages.h"

#include "dispatch/lazy_storage.h"
#include "dispatch/parts/part_record.h"

#include <lockstep/dispatch/part.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <utility>

namespace lockstep::sharded {
namespace {

// In memory as they are used.
class PlainAverages : public Averages {
 public:
  using Averages::Averages;

  at::Tensor place(int i) override {
    return storage_->place(unit_.dtype(), slice(i).offset, {slice(i).of_tensor.length()}, {1});
  }
  [[nodiscard]] bool hold(const at::Tensor& gradient) const override {
    return storage_ && storage_->holds(gradient);
  }

 protected:
  void open(const at::Tensor& memory) {
    storage_.emplace(static_cast<std::int64_t>(memory.nbytes()), memory.device(),
                     std::weak_ptr<dispatch::StorageOwner>(), unit_.settings().key, "",
                     dispatch::record_of_parts(unit_.parts()));
    storage_->attach(memory);
  }
  [[nodiscard]] bool is_open() const { return storage_.has_value(); }
  void close() { storage_.reset(); }

 private:
  std::optional<dispatch::LazyStorage> storage_;
};

class AveragesInBuffer final : public PlainAverages {
 public:
  using PlainAverages::PlainAverages;

  void begin() override {
    if (!is_open()) open(buffer_.own_part());
  }
  void leave_buffer() override {
    for (const at::Tensor& slice : unit_.slices()) {
      at::Tensor& gradient = slice.mutable_grad();
      if (!hold(gradient)) continue;
      gradient = dispatch::as_part(dispatch::values_of(gradient.detach()).clone(), unit_.parts(),
                                   gradient.storage_offset(), unit_.settings().key);
    }
  }
};

class AveragesBeside : public PlainAverages {
 public:
  using PlainAverages::PlainAverages;

  void begin() override {
    if (memory_.defined()) return;
    memory_ = made();
    open(memory_);
  }
  at::Tensor place(int i) override {
    part_of(memory_, i).copy_(part_of(buffer_.own_part(), i));
    return PlainAverages::place(i);
  }
  void drop() override {
    memory_.reset();
    close();
  }
  [[nodiscard]] std::int64_t bytes() const override {
    return memory_.defined() ? static_cast<std::int64_t>(memory_.nbytes()) : 0;
  }

 protected:
  [[nodiscard]] const at::Tensor& memory() const { return memory_; }

 private:
  [[nodiscard]] virtual at::Tensor made() const {
    return at::empty({unit_.range().length()}, unit_.slices().front().options());
  }

  at::Tensor memory_;
};

class OffloadedAverages final : public AveragesBeside {
 public:
  using AveragesBeside::AveragesBeside;

  void end() override { unit_.settings().offload->has_used(memory()); }
  void drop() override {}
  [[nodiscard]] std::int64_t bytes() const override { return 0; }

 private:
  [[nodiscard]] at::Tensor made() const override {
    return unit_.settings().offload->zeros(unit_.range().length(), unit_.dtype());
  }
};

class NarrowAverages final : public Averages {
 public:
  using Averages::Averages;

  void begin() override {
    at::Tensor row = buffer_.own_part();
    if (!buffer_.stays()) {
      if (!memory_.defined()) memory_ = at::empty_like(row);
      row = memory_.copy_(row);
    }
    latest_ = LazyGradient::make(row.unsqueeze(0), {0, row.numel()}, unit_.dtype(),
                                 unit_.settings().key, unit_.parts());
  }
  at::Tensor place(int i) override {
    return latest_->slice(slice(i).offset, slice(i).of_tensor.length());
  }
  void leave_buffer() override {
    if (latest_) std::exchange(latest_, nullptr)->settle();
  }
  void drop() override {
    leave_buffer();
    memory_.reset();
  }
  [[nodiscard]] std::int64_t bytes() const override {
    return memory_.defined() ? static_cast<std::int64_t>(memory_.nbytes()) : 0;
  }

 private:
  at::Tensor memory_;                     // undefined where the buffer stays
  std::shared_ptr<LazyGradient> latest_;  // null: none is used of memory that will be written
};

class AveragesOfRows final : public Averages {
 public:
  AveragesOfRows(const Unit& unit, const GradientBuffer& buffer,
                 std::shared_ptr<LazyGradients> deferred)
      : Averages(unit, buffer), deferred_(std::move(deferred)) {}

  void begin() override {
    latest_ = LazyGradient::make(buffer_.rows(), unit_.range(), unit_.dtype(), unit_.settings().key,
                                 unit_.parts());
  }
  void end() override { deferred_->add(std::exchange(latest_, nullptr)); }
  at::Tensor place(int i) override {
    return latest_->slice(slice(i).offset, slice(i).of_tensor.length());
  }
  at::Tensor values(int i) override { return place(i); }

 private:
  std::shared_ptr<LazyGradients> deferred_;
  std::shared_ptr<LazyGradient> latest_;  // between begin() and end()
};

}  // namespace

std::unique_ptr<Averages> Averages::make(const Unit& unit, const GradientBuffer& buffer,
                                         std::shared_ptr<LazyGradients> deferred) {
  c10::ScalarType own = unit.dtype();
  bool is_offloaded = unit.settings().offload != nullptr;
  if (buffer.rows().defined())
    return std::make_unique<AveragesOfRows>(unit, buffer, std::move(deferred));
  if (buffer.stays() && buffer.dtype() == own && unit.device() == unit.shard_device())
    return std::make_unique<AveragesInBuffer>(unit, buffer);
  // Files take no memory, and their pages are asked for by address.
  if (!is_offloaded && unit.shard_device().is_cpu() &&
      c10::elementSize(buffer.dtype()) < c10::elementSize(own))
    return std::make_unique<NarrowAverages>(unit, buffer);
  if (is_offloaded) return std::make_unique<OffloadedAverages>(unit, buffer);
  return std::make_unique<AveragesBeside>(unit, buffer);
}

at::Tensor Averages::values(int i) {
  return part_of(buffer_.own_part(), i).to(unit_.shard_device(), unit_.dtype());
}

}  // namespace lockstep::sharded
