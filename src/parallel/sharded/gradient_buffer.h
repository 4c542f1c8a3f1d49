// GradientBuffer: where all gradients of one unit lie, flat, until they are averaged:
//
//   PooledBuffer       a buffer of the pool, from the first gradient to publish(): levels gradients
//                      and full
//   PersistentBuffer   one that stays: level optimizer
//   RowBuffer          this rank's row in memory of all ranks: reduce_in_step
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace lockstep::sharded {

class GradientBuffer {
 public:
  // The unit, the pool and the group outlive it. Local, but collective with reduce_in_step.
  static std::unique_ptr<GradientBuffer> make(const Unit& unit, Group& shards, BufferPool& pool);
  virtual ~GradientBuffer() = default;

  // In the dtype of the sum over ranks. Undefined while there is none.
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }
  // This rank's range of it.
  [[nodiscard]] at::Tensor own_part() const;
  // All ranks' buffers, a row each; undefined where they are no memory of this rank.
  [[nodiscard]] virtual at::Tensor rows() const { return {}; }

  // Whether it is there between steps.
  [[nodiscard]] virtual bool stays() const = 0;
  // It is there from now on. What is no gradient's place is zeros.
  void take();
  // It is not used any more.
  virtual void give_back() {}

  // Posts the sum, or average, over the ranks: own_part() has it then, where there are no rows().
  [[nodiscard]] virtual Work reduce(Op op, const CallOptions& call);
  // The same of any memory, as large as flat().
  [[nodiscard]] Work reduce(const at::Tensor& flat, Op op, const CallOptions& call);

 protected:
  GradientBuffer(const Unit& unit, Group& shards);
  [[nodiscard]] const Unit& unit() const { return unit_; }
  [[nodiscard]] Group& shards() const { return shards_; }
  void clear_padding();

  at::Tensor flat_;

 private:
  [[nodiscard]] virtual at::Tensor made() = 0;

  const Unit& unit_;
  Group& shards_;
  c10::ScalarType dtype_;
};

}  // namespace lockstep::sharded
