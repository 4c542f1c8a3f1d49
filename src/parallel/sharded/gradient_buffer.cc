#include "parallel/sharded/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <utility>

namespace lockstep::sharded {
namespace {

c10::ScalarType sum_dtype_of(const Unit& unit) {
  c10::ScalarType computed = unit.compute_dtype();
  return c10::isFloatingType(computed) ? unit.settings().reduce_dtype.value_or(computed) : computed;
}

class PooledBuffer final : public GradientBuffer {
 public:
  PooledBuffer(const Unit& unit, Group& shards, BufferPool& pool)
      : GradientBuffer(unit, shards), pool_(pool) {}

  [[nodiscard]] bool stays() const override { return false; }
  void give_back() override {
    if (flat_.defined()) pool_.give(std::exchange(flat_, at::Tensor()));
  }

 private:
  at::Tensor made() override {
    return pool_.take(unit().layout().numel(), dtype(), unit().device());
  }

  BufferPool& pool_;
};

class PersistentBuffer final : public GradientBuffer {
 public:
  PersistentBuffer(const Unit& unit, Group& shards, BufferPool& pool)
      : GradientBuffer(unit, shards), pool_(pool) {}

  [[nodiscard]] bool stays() const override { return true; }

 private:
  at::Tensor made() override {
    return pool_.make(unit().layout().numel(), dtype(), unit().device());
  }

  BufferPool& pool_;
};

class RowBuffer final : public GradientBuffer {
 public:
  RowBuffer(const Unit& unit, Group& shards) : GradientBuffer(unit, shards) {
    at::NoGradGuard no_grad;
    c10::InferenceMode off(false);
    rows_ = shards.empty_node_shared({shards.size(), unit.layout().numel()}, dtype());
    take();
  }

  [[nodiscard]] at::Tensor rows() const override { return rows_; }
  [[nodiscard]] bool stays() const override { return true; }
  // The rows are summed where an average is used.
  Work reduce(Op /*op*/, const CallOptions& /*call*/) override { return {}; }

 private:
  at::Tensor made() override { return rows_.select(0, shards().rank()); }

  at::Tensor rows_;
};

}  // namespace

std::unique_ptr<GradientBuffer> GradientBuffer::make(const Unit& unit, Group& shards,
                                                     BufferPool& pool) {
  if (unit.settings().reduce_in_step) return std::make_unique<RowBuffer>(unit, shards);
  if (unit.settings().level == ShardLevel::optimizer)
    return std::make_unique<PersistentBuffer>(unit, shards, pool);
  return std::make_unique<PooledBuffer>(unit, shards, pool);
}

GradientBuffer::GradientBuffer(const Unit& unit, Group& shards)
    : unit_(unit), shards_(shards), dtype_(sum_dtype_of(unit)) {}

at::Tensor GradientBuffer::own_part() const {
  return flat_.narrow(0, unit_.range().begin, unit_.range().length());
}

void GradientBuffer::take() {
  if (flat_.defined()) return;
  flat_ = made();
  clear_padding();
}

void GradientBuffer::clear_padding() {
  std::int64_t end = 0;
  auto clear_up_to = [&](std::int64_t begin) {
    if (begin > end) flat_.narrow(0, end, begin - end).zero_();
  };
  for (const layout::FlatEntry& entry : unit_.layout().entries()) {
    clear_up_to(entry.offset);
    end = entry.offset + entry.numel;
  }
  clear_up_to(flat_.numel());
}

Work GradientBuffer::reduce(Op op, const CallOptions& call) { return reduce(flat_, op, call); }

Work GradientBuffer::reduce(const at::Tensor& flat, Op op, const CallOptions& call) {
  at::Tensor part = flat.narrow(0, unit_.range().begin, unit_.range().length());
  return shards_.reduce_scatter(part, flat, op, call);
}

}  // namespace lockstep::sharded
