// Group: some ranks with their own numbering, and every collective operation among them.
//
// A value handle: copies share one group. All ranks of a group call the same operations in the same
// order; a different call, size, dtype or tag on some rank is a Mismatch that names both.
// Operations are asynchronous: a call posts the operation and returns a Work; the tensors must be
// left alone until Work::wait() returns. Posting is enough: a rank that has posted may compute,
// block elsewhere or drop the Work without stalling the others. Operations of one group take effect
// in the order of their posts; two groups that use the same memory need a wait() between.
//
// Any thread may call; calls on one group are serialised, and their order must be the same on all
// ranks.
//
// Tensors: outputs and in-place tensors must be contiguous; inputs that are not are copied. Every
// dtype that LibTorch trains with. A group of one rank completes at once and makes at most one
// copy.
//
// Tensors on a device such as a GPU: an operation begins after what the posting thread had given to
// its current stream of that device until the post, and what the thread that waits gives to its
// current stream after the wait sees the outputs. Other streams must be ordered after that one.
//
// Sums are taken in one fixed order, a balanced binary tree over rank numbers (split at the largest
// power of two below the size), so equal inputs give equal bits on the engines `local` and `shm`,
// whatever the timing; bfloat16 and half are summed in float.
//
// Errors: InvalidArgument before anything was sent; PeerLost, Timeout, Mismatch, Aborted from
// wait() or from the next call.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/op.h>
#include <lockstep/comm/work.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

class Backend;
class GroupState;

// What any call may be given besides its operands.
struct CallOptions {
  std::string_view tag = {};  // a name for messages; ranks that give different tags are a Mismatch
  // Instead of the group's. Duration::max(): none, and no notice of a wait that lasts long.
  std::optional<Duration> timeout = {};
};

class Group {
 public:
  using Where = std::source_location;

  // A group of one rank.
  Group();
  // For engines: a group without a flight record. `timeout` is the deadline of a wait.
  Group(std::shared_ptr<Backend> backend, std::string name, Duration timeout);
  // What init() and split() use.
  explicit Group(std::shared_ptr<GroupState> state);

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] bool is_root(int root = 0) const { return rank() == root; }
  // "local", "shm", "gloo", "nccl", "mpi", "hierarchical"; "one" for a group of one rank.
  [[nodiscard]] std::string_view backend() const;
  // "world", "world/split#2/0", ...: unique in the process, the same on all ranks; used in
  // messages.
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] Duration timeout() const;
  void set_timeout(Duration timeout);

  // Every rank calls; ranks with the same color form a new group, numbered by key and then by rank
  // here. Blocks.
  [[nodiscard]] Group split(int color, int key = 0, Where where = Where::current()) const;
  // Every rank calls with the same list; those in it get the new group (numbered as listed), others
  // nothing. Lists may overlap from call to call. Blocks.
  [[nodiscard]] std::optional<Group> subset(std::span<const int> ranks,
                                            Where where = Where::current()) const;

  // In place: every rank ends with the combination of all.
  Work all_reduce(const at::Tensor& tensor, Op op = Op::sum, CallOptions options = {},
                  Where where = Where::current());
  // In place on the root; the others' tensors are left as they are.
  Work reduce(const at::Tensor& tensor, int root = 0, Op op = Op::sum, CallOptions options = {},
              Where where = Where::current());
  // The root's values replace everybody's.
  Work broadcast(const at::Tensor& tensor, int root = 0, CallOptions options = {},
                 Where where = Where::current());

  // output (size() times as many elements as input) is all inputs in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, CallOptions options = {},
                  Where where = Where::current());
  // Uneven: counts[r] elements come from rank r; every rank passes the same counts.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, CallOptions options = {},
                  Where where = Where::current());

  // input (size() times as many elements as output) is combined over ranks; rank r gets its r-th
  // part.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op = Op::sum,
                      CallOptions options = {}, Where where = Where::current());
  // Uneven: rank r gets counts[r] elements; every rank passes the same counts.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      std::span<const std::int64_t> counts, Op op = Op::sum,
                      CallOptions options = {}, Where where = Where::current());

  // Part j of input goes to rank j and becomes part rank() of its output; parts are equal.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, CallOptions options = {},
                  Where where = Where::current());
  // Uneven: input_counts[j] elements go to rank j, output_counts[j] come from it.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> output_counts,
                  std::span<const std::int64_t> input_counts, CallOptions options = {},
                  Where where = Where::current());

  // The root's output becomes all inputs in rank order; other ranks pass an undefined output.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0,
              CallOptions options = {}, Where where = Where::current());
  // Part r of the root's input becomes rank r's output; other ranks pass an undefined input.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0,
               CallOptions options = {}, Where where = Where::current());

  // Messages between two ranks match in the order of their posts; a different size, dtype or tag is
  // a Mismatch. That order is their own: wait() for a message before another operation uses its
  // memory.
  Work send(const at::Tensor& tensor, int destination, CallOptions options = {},
            Where where = Where::current());
  Work recv(const at::Tensor& tensor, int source, CallOptions options = {},
            Where where = Where::current());

  // Complete when every rank has called it, and what the operations before it write is there, also
  // in memory that ranks share.
  Work barrier(CallOptions options = {}, Where where = Where::current());

  // A tensor that peers of this host can read where it lies, so that operations on it move no byte
  // twice. Local: each rank may allocate what and when it likes, in any order. Other tensors work
  // everywhere too; on shm those of 64 KiB and more lie there by themselves
  // (InitOptions::arena_tensors), and the rest needs one more copy.
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options = {}) const;

  // One tensor over the same memory on every rank: what one rank writes, all see. Collective: every
  // rank calls with the same sizes and dtype, in the same order among its operations; blocks.
  // Uninitialised; the memory goes with the last rank's tensor. Writing and reading are ordered by
  // barrier(). An all_gather of slices of such a tensor into itself, each at its rank's own place,
  // moves no byte. InvalidArgument on engines whose ranks share no memory.
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options = {},
                                             Where where = Where::current());

  // Kills the group on every rank that can be reached: what is waited for ends with Aborted and
  // `reason`.
  void abort(std::string_view reason);

 private:
  friend std::string write_flight_record(const Group& group, const std::string& folder);

  std::shared_ptr<GroupState> state_;
};

}  // namespace lockstep
