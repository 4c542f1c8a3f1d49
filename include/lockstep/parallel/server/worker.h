// A worker of the parameter server (server.h): computes gradients, pushes them to the servers, and
// pulls what they have made of the parameters.
//
//   Net model;
//   lockstep::ps::Worker worker(model, place.meeting, place.number);
//   for (auto& batch : loader.epoch(0)) {
//     worker.zero_grad();
//     loss(model->forward(batch.data), batch.target).backward();
//     worker.step();                   // push() and pull()
//   }
//
// There is no optimizer here: the servers have it. Worker 0's values are everybody's at the
// beginning, buffers and frozen parameters too; from then on those are each worker's own. A tied
// parameter is one. Parameters without a gradient are pushed as absent: a step changes those that
// some worker has one for, and others count as zeros there.
//
// Rows: of parameters that `by_rows` names (the weight of an Embedding) only rows travel.
//
//   worker.pull_rows("embedding.weight", ids);     // before each forward()
//
// push() sends the rows that have a gradient, dense or sparse; rows that were not pulled since the
// last push() must have none, which is checked. The servers update as if all other rows had a
// gradient of zero, so results are those of a model that is pulled and pushed whole.
//
// Errors: PeerLost naming the server that was lost, Timeout naming one that did not answer;
// Aborted with what a server said when it ended. Then the worker is dead: each later call throws
// again. The module is as it was before the call, or has some of the new values.
//
// Threads: one thread a time. The module's tensors may be on any device.
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
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::ps {

struct WorkerOptions {
  // Patterns of names (lockstep/layout/name_pattern.h) of parameters whose rows are pulled one by
  // one. InvalidArgument for a pattern that names nothing. Equal on all workers.
  std::vector<std::string> by_rows = {};
};

// Bytes of parameters and gradients, rows' numbers included.
struct Traffic {
  std::int64_t pushed = 0;
  std::int64_t pulled = 0;
};

class [[nodiscard]] Worker {
 public:
  // Blocks until all servers have come, and worker 0 with its values. `number`: 0 ... workers - 1
  // of those that begin together; absent: joins a run that is under way. InvalidArgument for a
  // number that is not there; BadInput when another worker has it; Timeout naming the servers that
  // are missing; Mismatch, with both, when servers were given different options, or workers
  // different parameters.
  Worker(const ModuleRef& module, const Meeting& meeting, std::optional<int> number,
         const WorkerOptions& options = {});
  // Leaves in order, unless an exception unwinds the stack.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // This worker's number; of one that joined, the next that was free.
  [[nodiscard]] int number() const;
  // Steps made so far; one that joined begins where the run was.
  [[nodiscard]] std::int64_t steps() const;

  // Gradients of trained parameters become undefined.
  void zero_grad();

  // Sends the gradients. InvalidArgument, with nothing sent: a second one without pull() between
  // them, for gradients of old values; a row with a gradient that was not pulled; a parameter of
  // another size or dtype than at the beginning.
  void push();
  // Waits until this worker may go on (Consistency), and takes the servers' values, but for rows.
  void pull();
  void step() {
    push();
    pull();
  }

  // Takes these rows: integers, in any shape, as often as they like. InvalidArgument for a name
  // that is not pulled by rows, and for a row that is not there.
  void pull_rows(std::string_view name, const at::Tensor& rows);
  // All rows of all of them: to save the model.
  void pull_all_rows();

  // Asks every server for ServerOptions::on_request(text), calls `meanwhile`, in which this worker
  // may meet them in a collective of another group, and waits until all have done it. One worker
  // asks, when no other has pushed without a pull() since: updates wait for the end. Aborted with
  // what a server has thrown.
  void request(std::string_view text, const std::function<void()>& meanwhile = {});

  // Leaves in order now, as the destructor does; what talks to a server is InvalidArgument then.
  void leave();

  [[nodiscard]] Traffic traffic() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::ps

#pragma GCC visibility pop
