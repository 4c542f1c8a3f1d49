// Runs the operations of a thread that builds with Deferral, and records what large tensors are
// made by.
#pragma once

#include "dispatch/call.h"
#include "dispatch/deferral/deferred_storage.h"
#include "dispatch/deferral/recorded_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <memory>

namespace lockstep::dispatch {

class Recorder {
 public:
  explicit Recorder(std::int64_t smallest) : smallest_(smallest) {}

  // Null: nothing is recorded.
  [[nodiscard]] static Recorder* of_this_thread();

  // `recorder` is this thread's for as long as it lives.
  class Turn {
   public:
    explicit Turn(Recorder* recorder);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Recorder* before_;
  };
  // Nothing is.
  class Pause : Turn {
   public:
    Pause() : Turn(nullptr) {}
  };

  void run(Call& call);

 private:
  struct Uses;

  [[nodiscard]] bool make_memory(const c10::OperatorHandle& operation, torch::jit::Stack& stack);
  void compute(const c10::OperatorHandle& operation, torch::jit::Stack& items, Uses& uses);
  [[nodiscard]] Memories values_of(const Uses& uses, bool overwrite) const;
  static void give_back(const Uses& uses, const torch::jit::Stack& run_on,
                        torch::jit::Stack& results);
  void defer_large(torch::jit::Stack& results, const std::shared_ptr<RecordedCall>& call);

  // The values of a storage after a call: those that the last operation used.
  struct Recent {
    std::shared_ptr<const RecordedCall> after;
    at::Tensor memory;
  };

  const std::int64_t smallest_;
  std::map<StorageId, Recent> recent_;
};

// The interceptor for deferred construction: a thread with a Recorder gives it its operations.
void record_operation(Call& call);

}  // namespace lockstep::dispatch
