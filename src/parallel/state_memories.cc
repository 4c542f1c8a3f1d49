#include "parallel/state_memories.h"

#include <algorithm>
#include <utility>

namespace lockstep::parallel {
namespace {

class StateMemories final : public optim::StateMemory {
 public:
  explicit StateMemories(std::vector<std::shared_ptr<optim::StateMemory>> memories)
      : memories_(std::move(memories)) {}

  [[nodiscard]] at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override {
    return memories_.front()->zeros(count, dtype);
  }
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override {
    return std::ranges::any_of(memories_, [&](const auto& one) { return one->holds(tensor); });
  }
  void will_use(const at::Tensor& tensor) noexcept override {
    for (const auto& one : memories_) one->will_use(tensor);
  }
  void has_used(const at::Tensor& tensor) noexcept override {
    for (const auto& one : memories_) one->has_used(tensor);
  }

 private:
  std::vector<std::shared_ptr<optim::StateMemory>> memories_;
};

}  // namespace

std::shared_ptr<optim::StateMemory> one_of(
    std::vector<std::shared_ptr<optim::StateMemory>> memories) {
  std::erase(memories, nullptr);
  if (memories.size() > 1) return std::make_shared<StateMemories>(std::move(memories));
  return memories.empty() ? nullptr : std::move(memories.front());
}

}  // namespace lockstep::parallel
