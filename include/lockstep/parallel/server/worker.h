// A worker of the parameter server (server.h): computes gradients, pushes them to the servers, and
// pulls the updated parameters.
//
//   Net model;
//   lockstep::ps::Worker worker(model, place.meeting, place.number);
//   for (auto& batch : loader.epoch(0)) {
//     worker.zero_grad();
//     loss(model->forward(batch.data), batch.target).backward();
//     worker.step();                   // push() and pull()
//   }
//
// The worker has no optimizer: the servers have it. Worker 0's initial values are broadcast to all
// workers, including buffers and frozen parameters, which are local to each worker from then on. A
// tied parameter counts once. Parameters without a gradient are pushed as absent: a step changes a
// parameter if some worker has a gradient for it; gradients that the other workers lack count as
// zeros.
//
// Rows: for parameters that `by_rows` matches (the weight of an Embedding), only rows are
// transferred.
//
//   worker.pull_rows("embedding.weight", ids);     // before each forward()
//
// push() sends the rows that have a gradient, dense or sparse; rows that were not pulled since the
// last push() must have none, which is checked. The servers update as if all other rows had a
// gradient of zero, so the result is the same as if the whole model were pulled and pushed.
//
// Errors: PeerLost, which names the server that was lost; Timeout, which names a server that did
// not answer; Aborted, with the text of a server that ended. After these errors, the worker is
// dead: each later call throws the error again. The module then has the values from before the
// call, or new values in some parameters.
//
// Threads: one thread at a time. The module's tensors may be on any device.
#pragma once

#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/server/meeting.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::ps {

struct WorkerOptions {
  // Patterns (lockstep/layout/name_pattern.h) of parameters whose rows are pulled separately.
  // Throws InvalidArgument for a pattern that matches nothing. Must be equal on all workers.
  std::vector<std::string> by_rows = {};
};

// Bytes of parameters and gradients, including row indices.
struct Traffic {
  std::int64_t pushed = 0;
  std::int64_t pulled = 0;
};

class [[nodiscard]] Worker {
 public:
  // Blocks until all servers have joined, and worker 0 has sent its values. `number`: below
  // Meeting::workers for workers that start together; std::nullopt: joins a run in progress. Throws
  // InvalidArgument for an invalid number; BadInput if another worker has this number; Timeout,
  // which names the missing servers, if they do not join; Mismatch, with both values, if servers
  // have different options or workers have different parameters.
  Worker(const ModuleRef& module, const Meeting& meeting, std::optional<int> number,
         const WorkerOptions& options = {});
  // Leaves in order, unless an exception unwinds the stack.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // This worker's number; a worker that joined later got the next free one.
  [[nodiscard]] int number() const;
  // The number of steps made; a worker that joined later starts at the run's number.
  [[nodiscard]] std::int64_t steps() const;

  // Sets the gradients of trained parameters to undefined.
  void zero_grad();

  // Sends the gradients. Throws InvalidArgument, and sends nothing, for a second push() without a
  // pull() between them (its gradients would belong to old values), a row that has a gradient but
  // was not pulled, or a parameter whose size or dtype has changed since the beginning.
  void push();
  // Blocks until this worker may continue (Consistency), then takes the servers' values, except
  // rows.
  void pull();
  void step() {
    push();
    pull();
  }

  // Pulls these rows: integers, in any shape; repetitions are allowed. Throws InvalidArgument for a
  // name that is not pulled by rows, and for a row that does not exist.
  void pull_rows(std::string_view name, const at::Tensor& rows);
  // Pulls all rows of all parameters that are pulled by rows, to save the model.
  void pull_all_rows();

  // Asks every server for ServerOptions::on_request(text), calls `meanwhile`, in which this worker
  // may join the servers in a collective of another group, and waits until all servers are done.
  // Only one worker may call this at a time, and only while no other worker has pushed since its
  // last pull(): updates wait until the request ends. If a server's callback throws, throws Aborted
  // with the text of the exception.
  void request(std::string_view text, const std::function<void()>& meanwhile = {});

  // Leaves in order now, as the destructor does; later communication throws InvalidArgument.
  void leave();

  [[nodiscard]] Traffic traffic() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::ps

#pragma GCC visibility pop
