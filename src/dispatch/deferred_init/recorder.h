// Runs the operations of a thread that constructs with DeferredInit, and records how large tensors
// are made.
#pragma once

#include "dispatch/call.h"
#include "dispatch/deferred_init/recorded_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <memory>

namespace lockstep::dispatch {

class Recorder {
 public:
  explicit Recorder(std::int64_t smallest) : smallest_(smallest) {}

  // Returns null if this thread does not record.
  [[nodiscard]] static Recorder* of_this_thread();

  // Makes `recorder` this thread's recorder during the object's lifetime.
  class Turn {
   public:
    explicit Turn(Recorder* recorder);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Recorder* before_;
  };
  // Disables recording during the object's lifetime.
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

  // The values of a storage after a call, cached for the storages that the last operation used.
  struct Recent {
    std::shared_ptr<const RecordedCall> after;
    at::Tensor memory;
  };

  const std::int64_t smallest_;
  std::map<StorageId, Recent> recent_;
};

// The interceptor for deferred construction: passes operations to the thread's Recorder, if any.
void record_operation(Call& call);

}  // namespace lockstep::dispatch
