// The operations of Group in those of c10d: moves go as bytes, so that every dtype works; what an
// engine lacks (uneven parts, averages, half precision summed in float, minima that keep NaN) is
// composed here.
#pragma once

#include "comm/backend/posted_call.h"
#include "comm/engines/c10d/engine.h"

#include <atomic>
#include <mutex>

namespace lockstep::c10d_engine {

// What the launches of one engine share.
struct Launches {
  std::mutex mutex;             // held at each launch, and while the engine is being closed
  bool closed = false;          // under mutex: nothing is launched any more
  std::atomic<int> running{0};  // launched and not over
};

// Starts and awaits one call after the other on a c10d backend. All calls of one Launcher run on
// one thread.
class Launcher {
 public:
  Launcher(Engine& engine, Launches& launches, int rank, int size)
      : engine_(engine), launches_(launches), rank_(rank), size_(size) {}

  // Returns when this rank's part is complete. Throws what c10d throws, and Aborted when the engine
  // is closed.
  void run(const PostedCall& call);

 private:
  void all_reduce(const PostedCall& call);
  void reduce(const PostedCall& call);
  void broadcast(const PostedCall& call);
  void all_gather(const PostedCall& call);
  void reduce_scatter(const PostedCall& call);
  void reduce_scatter_evenly(const PostedCall& call);
  void all_to_all(const PostedCall& call);
  // CallDiffers names a rank that sends or expects something else than this one's counts say. The
  // engine would not find out: Gloo ends the process.
  void compare_counts(const PostedCall& call);
  void gather(const PostedCall& call);
  void scatter(const PostedCall& call);
  void barrier(const PostedCall& call);
  void message(const PostedCall& call);

  // The combination of all ranks' input, on `root` or (-1) on all; undefined elsewhere. In a dtype
  // that rounds later.
  at::Tensor combined(const PostedCall& call, int root);
  // Fills `all` with every rank's `mine`.
  void gather_evenly(const PostedCall& call, const at::Tensor& all, const at::Tensor& mine);
  // Starts an operation under the mutex, marked for this call, and waits for it.
  template <class Start>
  void await(const PostedCall& call, Start start);

  Engine& engine_;
  Launches& launches_;
  int rank_;
  int size_;
};

}  // namespace lockstep::c10d_engine
