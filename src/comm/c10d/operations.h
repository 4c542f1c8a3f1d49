// The operations of Group in those of c10d: moves go as bytes, so that every dtype works; what an
// engine lacks (uneven parts, averages, half precision summed in float, minima that keep NaN) is
// composed here.
#pragma once

#include "comm/c10d/engine.h"
#include "comm/posted_call.h"

#include <mutex>

namespace lockstep::c10d_engine {

// Starts and awaits one call after the other on a c10d backend. All calls of one Launcher run on
// one thread; `mutex` keeps the launches of different threads apart.
class Launcher {
 public:
  Launcher(Engine& engine, std::mutex& mutex, int rank, int size)
      : engine_(engine), mutex_(mutex), rank_(rank), size_(size) {}

  // Returns when this rank's part is complete. Throws what c10d throws.
  void run(const PostedCall& call);

 private:
  void all_reduce(const PostedCall& call);
  void reduce(const PostedCall& call);
  void broadcast(const PostedCall& call);
  void all_gather(const PostedCall& call);
  void reduce_scatter(const PostedCall& call);
  void all_to_all(const PostedCall& call);
  void gather(const PostedCall& call);
  void scatter(const PostedCall& call);
  void message(const PostedCall& call);

  // The combination of all ranks' input, on `root` or (-1) on all; undefined elsewhere. In a dtype
  // that rounds later.
  at::Tensor combined(const PostedCall& call, int root);
  // Starts an operation under the mutex, marked for this call, and waits for it.
  template <class Start>
  void await(const PostedCall& call, Start start);

  Engine& engine_;
  std::mutex& mutex_;
  int rank_;
  int size_;
};

}  // namespace lockstep::c10d_engine
