// What the adapter needs of a c10d backend beyond c10d::Backend's own virtuals; one implementation
// an engine.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace c10d {
class Backend;
}

namespace lockstep::c10d_engine {

class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // "gloo".
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual c10d::Backend& group() = 0;
  // Whether it can work with the memory that this tensor is in.
  [[nodiscard]] virtual bool takes(const at::Tensor& tensor) const { return tensor.is_cpu(); }
  // What the next collective's messages are marked with: those with different marks never meet.
  virtual void mark_next(std::uint32_t mark) = 0;
  // Ends every operation that is under way, here and on the peers. Any thread, also beside an
  // operation, but none begins meanwhile or later; never throws. `are_running` says whether
  // operations of this rank still are.
  virtual void close(const std::function<bool()>& are_running) noexcept = 0;
  // A group of other ranks of the same machines. Blocks until all have come.
  [[nodiscard]] virtual std::shared_ptr<Engine> make_group(const std::string& name, int rank,
                                                           int size, Duration timeout) = 0;
};

}  // namespace lockstep::c10d_engine
