// The parameter server (Li et al., OSDI 2014): servers keep the parameters and update them, workers
// compute gradients.
//
//   lockstep::ps::Server server(place.meeting, place.number, {.optimizer = [](const auto& parts) {
//     return std::make_unique<lockstep::optim::SGD>(lockstep::ps::tensors_of(parts), 0.1);
//   }});
//   server.run();                         // until the last worker has left
//
// Several servers share the parameters by bytes: server k of n keeps the rows (slices of dim 0)
// that begin in the k-th n-th of all bytes. Nothing is told to a server but by workers: it learns
// names, sizes and values of parameters from them.
//
// When a gradient counts (Consistency):
//
//   synchronous        one update a step, of the mean over workers, in the tree of Group's sums:
//                      bit for bit what DistributedDataParallel gives on `shm`
//   stale_synchronous  (Ho et al., NIPS 2013) an update for each gradient as it comes; a worker
//                      waits when it is more than `staleness` steps ahead of the slowest
//   asynchronous       the same, and nobody waits
//
// In the last two, W workers make W updates where the first makes one: choose the rate for that.
//
// A worker that ends or is lost is taken out; what it has pushed completely still counts. Others
// wait for it no more. One that others have waited for as long as Meeting::timeout is taken out
// too: a process that has stopped ends no other. A worker that joins later begins with the next
// step; when the last one has left, no more join, on any server.
//
// Each server counts for itself. A worker that is lost while it pushes counts in that step where
// its gradient had come completely: with several servers that one update may be a mean over three
// workers on some of them and over two on others. Both are the mean of true gradients; only the
// bits of a run in which a worker is lost depend on when it is.
#pragma once

#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/server/meeting.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::ps {

enum class Consistency { synchronous, stale_synchronous, asynchronous };

// The optimizer of a server's parts of parameters. It must treat elements alike wherever they are:
// SGD, Adam and AdamW of lockstep::optim, and those of torch::optim that are element-wise.
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Part>& parts)>;

[[nodiscard]] std::vector<at::Tensor> tensors_of(const std::vector<Part>& parts);

// What a worker asks of every server with Worker::request(): its text, the parts that this server
// keeps, and their optimizer, null where it keeps none. They may be read and changed.
using OnRequest = std::function<void(std::string_view text, const std::vector<Part>& parts,
                                     torch::optim::Optimizer* optimizer)>;

struct ServerOptions {
  MakeOptimizer optimizer;
  Consistency consistency = Consistency::synchronous;
  int staleness = 0;  // of stale_synchronous: steps that a worker may be ahead of the slowest
  // Called before each update, with the number of updates made so far (in synchronous mode of
  // steps, those included that no worker was left to push): for schedules of rates.
  std::function<void(torch::optim::Optimizer&, std::int64_t updates)> before_update = {};
  // Makes the update; absent: step() of the optimizer. For clipping (optim/gradient_transform.h):
  // it sees the gradients of this server's parts.
  std::function<void(torch::optim::Optimizer&)> step = {};
  // Called in the thread of the worker that asks, while no update is made and nothing is pulled.
  // What it throws ends the run on all sides, as that of an update does.
  OnRequest on_request = {};
};

// What has happened when run() returns.
struct ServerReport {
  std::int64_t updates = 0;
  int joined = 0;              // workers, those that began included
  std::vector<int> lost = {};  // numbers of those that ended without leaving
};

class Server {
 public:
  // InvalidArgument, in one line: a number that is not 0 ... servers - 1, staleness < 0 or given
  // without stale_synchronous, no optimizer, counts below 1.
  Server(Meeting meeting, int number, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves until no worker is left, once. Blocks. Throws, after telling the workers: Timeout naming
  // workers that never came; Mismatch when those that begin together have different parameters;
  // BadInput when another server has this number; what the optimizer throws.
  ServerReport run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::ps

#pragma GCC visibility pop
