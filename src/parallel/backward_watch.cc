#include "parallel/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <utility>

namespace lockstep::parallel {
namespace {

namespace autograd = torch::autograd;

// Lives in the task's list of callbacks, and goes with it.
struct Sentinel {
  explicit Sentinel(std::weak_ptr<BackwardObserver> observer) : observer(std::move(observer)) {}
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;
  ~Sentinel() {
    auto alive = called ? nullptr : observer.lock();
    if (alive) alive->on_backward_failed();
  }

  void end() {
    called = true;
    // The engine clears the node under evaluation when a top-level task ends; inside an outer one
    // it is that one's node.
    if (auto alive = observer.lock())
      alive->on_backward_end(autograd::get_current_node() != nullptr);
  }

  std::weak_ptr<BackwardObserver> observer;
  bool called = false;
};

void end_with_current_task(std::shared_ptr<Sentinel> sentinel) {
  autograd::Engine::get_default_engine().queue_callback(
      [sentinel = std::move(sentinel)] { sentinel->end(); });
}

}  // namespace

int current_backward() { return autograd::get_current_graph_task_id(); }

void watch_backward(std::weak_ptr<BackwardObserver> observer) {
  end_with_current_task(std::make_shared<Sentinel>(std::move(observer)));
}

void watch_outer_backward(std::weak_ptr<BackwardObserver> observer) {
  // The hook runs when the node's own work is done, in the outer task. It stays with the node,
  // which a retained graph may run again, so it gives its sentinel away; if the node fails, the
  // sentinel goes with the graph.
  auto holder =
      std::make_shared<std::shared_ptr<Sentinel>>(std::make_shared<Sentinel>(std::move(observer)));
  auto action = [holder](const autograd::variable_list& outputs, const autograd::variable_list&) {
    if (auto sentinel = std::exchange(*holder, nullptr)) end_with_current_task(std::move(sentinel));
    return outputs;
  };
  autograd::get_current_node()->add_post_hook(
      std::make_unique<autograd::utils::LambdaPostHook>(std::move(action)));
}

void StepWatch::watch() {
  int task = current_backward();
  if (std::ranges::find(watched_, task) != watched_.end()) return;
  watched_.push_back(task);
  ++running_;
  watch_backward(weak_from_this());
}

bool StepWatch::is_over(bool nested, bool complete) {
  --running_;
  if (complete) return true;
  if (running_ > 0) return false;
  if (!nested) return true;
  ++running_;
  watch_outer_backward(weak_from_this());
  return false;
}

}  // namespace lockstep::parallel
