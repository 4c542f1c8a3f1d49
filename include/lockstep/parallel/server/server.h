// The parameter server (Li et al., OSDI 2014): servers keep the parameters and update them, workers
// compute gradients.
//
//   lockstep::ps::Server server(place.meeting, place.number, {.optimizer = [](const auto& parts) {
//     return std::make_unique<lockstep::optim::SGD>(lockstep::ps::tensors_of(parts), 0.1);
//   }});
//   server.run();                         // until the last worker has left
//
// Several servers share the parameters by bytes: server k of n keeps the rows (slices of dim 0)
// that begin in the k-th n-th of all bytes. Servers learn names, sizes and values of parameters
// from the workers.
//
// When a gradient is applied (Consistency):
//
//   synchronous        one update per step, of the mean over workers, in the tree of Group's sums:
//                      bit for bit the result of DistributedDataParallel on `shm`
//   stale_synchronous  (Ho et al., NIPS 2013) an update for each gradient as it comes; a worker
//                      waits if it is more than `staleness` steps ahead of the slowest
//   asynchronous       an update for each gradient as it comes; workers never wait
//
// In the last two modes, W workers make W updates in place of one update in synchronous mode:
// choose the learning rate accordingly.
//
// A worker that ends or is lost is removed; gradients that it has pushed completely still count,
// and the other workers no longer wait for it. A worker for which others have waited as long as
// Meeting::timeout is removed, too, so that a stopped process cannot stop the run. A worker that
// joins later begins with the next step. When the last worker has left, no server accepts another.
//
// Each server counts gradients separately. If a worker is lost while it pushes, its gradient counts
// on the servers that have received their part completely. With several servers, this update may
// therefore be a mean over three workers on some servers, and over two on others. Only in a run
// that loses a worker, the exact bits depend on when the worker was lost.
#pragma once

#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/server/meeting.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::ps {

enum class Consistency { synchronous, stale_synchronous, asynchronous };

// The optimizer of a server's parts of parameters. It must be element-wise: SGD, Adam and AdamW of
// lockstep::optim, and the element-wise optimizers of torch::optim.
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Part>& parts)>;

[[nodiscard]] std::vector<at::Tensor> tensors_of(const std::vector<Part>& parts);

// Handles a request that a worker sends to every server by Worker::request(): its text, the parts
// that this server keeps, and their optimizer; null if the server keeps no parts. The callback may
// read and change the parts and the optimizer.
using OnRequest = std::function<void(std::string_view text, const std::vector<Part>& parts,
                                     torch::optim::Optimizer* optimizer)>;

struct ServerOptions {
  MakeOptimizer optimizer;
  Consistency consistency = Consistency::synchronous;
  int staleness = 0;  // of stale_synchronous: steps that a worker may be ahead of the slowest
  // Called before each update, for learning rate schedules, with the number of updates so far; in
  // synchronous mode with the number of steps, including steps without a worker to push.
  std::function<void(torch::optim::Optimizer&, std::int64_t updates)> before_update = {};
  // Makes the update; absent: step() of the optimizer. For clipping (optim/gradient_transform.h):
  // it sees the gradients of this server's parts.
  std::function<void(torch::optim::Optimizer&)> step = {};
  // Called in the thread of the worker that asks, while no update is made and no worker pulls. An
  // exception ends the run on all servers and workers, as an exception of an update does.
  OnRequest on_request = {};
};

// The events of a run, as known when run() returns.
struct ServerReport {
  std::int64_t updates = 0;
  int joined = 0;              // workers, those that began included
  std::vector<int> lost = {};  // numbers of those that ended without leaving
};

class Server {
 public:
  // Throws InvalidArgument, with a text of one line, if the number is not in 0 ... servers - 1,
  // staleness is negative or set without stale_synchronous, there is no optimizer, or a count is
  // below 1.
  Server(Meeting meeting, int number, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Blocks: serves until the last worker has left. Call it once. If the run fails, notifies the
  // workers and throws: Timeout, which names the workers that did not join; Mismatch if the initial
  // workers have different parameters; BadInput if another server has this number; or an exception
  // of the optimizer.
  ServerReport run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::ps

#pragma GCC visibility pop
