// Group: some ranks with their own numbering, and every collective operation among them.
//
// Group is a handle: copies share one group. All ranks of a group must call the same operations in
// the same order. A different call, size, dtype or tag on one rank is a Mismatch that names both
// calls.
//
// Operations are asynchronous: a call posts the operation and returns a Work. The caller must not
// read or write the tensors until Work::wait() returns. After the post a rank may compute, block
// elsewhere or drop the Work: it stalls no other rank. A post blocks in two cases only: it uses
// bytes that an earlier operation on a copied tensor has not delivered yet; or, on shm, 64
// operations of the group, or 16 messages to the same rank, are posted and not complete. Two ranks
// that exchange more messages than that post some of their recv() first. Operations of one group
// take effect in the order of their posts. Two groups that use the same memory need a wait()
// between their operations.
//
// Thread-safe. Calls on one group are serialised, and their order must be the same on all ranks.
//
// Tensors: outputs and in-place tensors must be contiguous. Inputs that are not contiguous are
// copied. Every dtype that LibTorch trains with is supported. In a group of one rank each operation
// is complete at once and makes at most one copy.
//
// Autograd: these operations have no derivative; functional.h has differentiable ones. If grad mode
// is on and an output was computed from tensors that require grad, the call throws InvalidArgument:
// pass its detach(), or call the function of functional.h. Leaves may be written, and tensors
// without dims, such as a loss. Like an in-place operation of LibTorch, a call changes the version
// of its output, and broadcast() also that of the root's tensor, so backward() throws if it needs
// the overwritten values.
//
// Tensors on a GPU: an operation begins after the work that the posting thread has enqueued on its
// current stream of that device. Work that the waiting thread enqueues on its current stream after
// wait() sees the outputs. The program must order other streams after that stream. If the group
// has_streams() (device.h), the posting thread launches the operation, and wait() does not block
// the host, as with PyTorch's NCCL. The device cannot run all operations at once, so all ranks must
// post the operations of all their groups in the same order.
//
// The backends `local`, `shm` and `mpi` sum in one fixed order, a balanced binary tree over rank
// numbers (split at the largest power of two below the size). With these backends, equal inputs
// give bitwise equal results, whatever the timing. bfloat16 and half are summed in float and
// rounded once; `hierarchical` also rounds the partial sums that each host sends to other hosts.
//
// Errors: InvalidArgument is thrown before anything is sent. wait() or the next call throws
// PeerLost, Timeout, Mismatch and Aborted.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#pragma GCC visibility push(default)

namespace lockstep {

class Backend;
class GroupState;

// One posted operation. A small value: copies are cheap and refer to the same operation.
class [[nodiscard]] Work {
 public:
  // Work that is already complete, as in a group of one rank.
  Work() = default;
  // Called by the group that posted the work; `entry` is the number of its flight record entry.
  Work(std::shared_ptr<GroupState> group, CallId id, std::uint64_t entry)
      : group_(std::move(group)), id_(id), entry_(entry) {}

  // Blocks until this rank's outputs are complete and no peer will touch its buffers again, or
  // throws the error (PeerLost, Timeout, Mismatch, Aborted). The deadline runs from the beginning
  // of the wait. A second call returns at once.
  //
  // Tensors on a device of a group that has_streams(): does not block the host. Work that this
  // thread enqueues on its current stream from now on runs after the operation. If the operation
  // fails later, that work runs on undefined values; the next call on the group, and every wait()
  // and synchronize() of a call that was not complete, throw the error. A barrier blocks the host.
  void wait();

  // Like wait(), but blocks the host until the operation is complete, also on a device.
  void synchronize();

  // Returns true if synchronize() would not block. Never throws.
  [[nodiscard]] bool done() const;

  // Declares that wait() will not be called for the operation. The operation keeps its tensors
  // alive until it is complete. Its outputs may be read only after a later wait() of the same
  // group, and the next call on the group throws its error. Destroying a Work has the same effect;
  // drop() says that it is meant.
  void drop() {}

 private:
  std::shared_ptr<GroupState> group_;
  CallId id_;
  std::uint64_t entry_ = 0;
};

// Options of one call.
struct CallOptions {
  std::string_view tag = {};  // a name for messages; ranks that give different tags are a Mismatch
  // Overrides the group's timeout. Duration::max(): no timeout, and long waits are not logged.
  std::optional<Duration> timeout = {};
};

// Counts the calls of a rank on a group and the bytes that the rank sends for them.
struct GroupTraffic {
  std::int64_t calls = 0;
  // The bytes of an algorithm in which ranks send values directly to the ranks that need them, and
  // each of p ranks adds a p-th of a sum. A rank sends 2b(p-1)/p for an all_reduce of b bytes,
  // b(p-1)/p for a reduce_scatter or all_to_all of b bytes, b(p-1) for an all_gather of an input of
  // b bytes, and nothing for recv and barrier. docs/reference/collectives.md lists the calls for
  // which a backend sends other numbers of bytes.
  std::int64_t bytes = 0;
};

class Group {
 public:
  using Where = std::source_location;

  // A group of one rank.
  Group();
  // For backends: a group without a flight record. `timeout` is the deadline of a wait.
  Group(std::shared_ptr<Backend> backend, std::string name, Duration timeout);
  // For init() and split().
  explicit Group(std::shared_ptr<GroupState> state);

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] bool is_root(int root = 0) const { return rank() == root; }
  // "local", "shm", "gloo", "nccl", "mpi", "hierarchical"; "one" for a group of one rank.
  [[nodiscard]] std::string_view backend() const;
  // "world", "world/split#2/0", ...: unique in the process, the same on all ranks; used in
  // messages.
  [[nodiscard]] const std::string& name() const;
  // Returns the rank's name for messages: "rank 1", or "rank 1 (rank 3 of the world)" if its number
  // in the world differs.
  [[nodiscard]] std::string describe(int rank) const;
  [[nodiscard]] Duration timeout() const;
  void set_timeout(Duration timeout);
  // Returns the traffic of this rank since the group was made. Not collective. Stays 0 in a group
  // of one rank.
  [[nodiscard]] GroupTraffic traffic() const;

  // Collective, blocks. Ranks with the same color form a new group, ordered by key and then by
  // rank in this group, as in MPI_Comm_split.
  [[nodiscard]] Group split(int color, int key = 0, Where where = Where::current()) const;
  // Collective, blocks. Every rank passes the same list. The ranks in it get the new group,
  // numbered as listed; the others get nothing. Lists of several calls may overlap.
  [[nodiscard]] std::optional<Group> subset(std::span<const int> ranks,
                                            Where where = Where::current()) const;

  // In place: every rank gets the combination of all ranks' tensors.
  Work all_reduce(const at::Tensor& tensor, Op op = Op::sum, CallOptions options = {},
                  Where where = Where::current());
  // In place on the root. The tensors of the other ranks do not change.
  Work reduce(const at::Tensor& tensor, int root = 0, Op op = Op::sum, CallOptions options = {},
              Where where = Where::current());
  // Every rank gets the root's values, in place.
  Work broadcast(const at::Tensor& tensor, int root = 0, CallOptions options = {},
                 Where where = Where::current());

  // output has size() times as many elements as input: all inputs in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, CallOptions options = {},
                  Where where = Where::current());
  // Uneven: counts[r] elements come from rank r; every rank passes the same counts.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  std::span<const std::int64_t> counts, CallOptions options = {},
                  Where where = Where::current());

  // input has size() times as many elements as output. It is combined over the ranks, and rank r
  // gets the r-th part.
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

  // Messages between two ranks match in the order of their posts. A different size, dtype or tag is
  // a Mismatch. Messages are not ordered with collectives: wait() for a message before another
  // operation uses its memory.
  Work send(const at::Tensor& tensor, int destination, CallOptions options = {},
            Where where = Where::current());
  Work recv(const at::Tensor& tensor, int source, CallOptions options = {},
            Where where = Where::current());

  // Completes when every rank has called it and all earlier operations have written their outputs,
  // also in memory that ranks share.
  Work barrier(CallOptions options = {}, Where where = Where::current());

  // Returns a tensor that peers on this host can read in place, which saves operations on it one
  // copy. Not collective: each rank may allocate any sizes at any time, in any order. All
  // operations accept other tensors too. On shm, all tensors of 64 KiB and more lie in shared
  // memory anyway (InitOptions::arena_tensors).
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options = {}) const;

  // Returns a tensor on memory that all ranks share: values that one rank writes are seen by all
  // ranks. Collective, blocks: every rank passes the same sizes and dtype, in the same order among
  // its operations. The memory is not initialised and is freed with the last rank's tensor.
  // barrier() orders writes before reads. An all_gather of slices of such a tensor into itself,
  // each at its rank's own offset, copies nothing. Throws InvalidArgument on backends whose ranks
  // share no memory.
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options = {},
                                             Where where = Where::current());

  // Ends the group on every rank that can be reached: every wait() throws Aborted with `reason`.
  // Not collective, but may block for some seconds while it informs the other ranks.
  void abort(std::string_view reason);

 private:
  friend bool has_streams(const Group& group);
  friend Group host_memory_group(const Group& group);
  friend std::string write_flight_record(const Group& group, const std::string& folder);

  std::shared_ptr<GroupState> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
