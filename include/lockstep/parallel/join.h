// Join: trains with ranks whose inputs end at different times, until the last one has ended. As
// torch.distributed.algorithms.Join:
//
//   lockstep::Join join({&ddp.joinable(), &sync.joinable()});   // every rank
//   for (auto& batch : loader.epoch(0)) {                       // more batches on some ranks
//     ddp.zero_grad();
//     loss(model->forward(batch)).backward();
//     sgd.step();
//   }
//   join.finish([&] { sgd.step(); ddp.zero_grad(); });          // until all ranks have come here
//
// A rank in finish() takes part in the collectives of the others, with gradients of zero and
// batches without rows, and performs the same update after each of their averaged backward() calls:
// its parameters, buffers and optimizer state stay equal to theirs. (PyTorch does not update the
// optimizer, and copies the parameters at the end.)
//
// How: before each round of collectives, the active ranks announce it in an all_gather of one
// number per rank. A round consists of calls of one joinable that all ranks make without waiting
// for other calls: the end of a backward() with all its posts, or the forward of one SyncBatchNorm
// layer. Active ranks must announce the same rounds in the same order; a difference is a Mismatch
// that names both. Communication inside the loop that does not belong to a joinable finds no
// partner on ranks that have ended, and times out. With fully_shard(), a whole forward and backward
// is one round, which begins with the first use of a parameter; an evaluation inside the loop must
// not record gradients. A use of a parameter without grad mode announces nothing. If such a use
// gathers (an embedding with max_norm writes its weight), it times out once the inputs of a rank
// have ended.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// Thrown on every rank with throw_on_early_termination if the inputs of some rank have ended.
class EarlyTermination : public Error {
  using Error::Error;
};

struct JoinOptions {
  // If true, averages are sums divided by the number of all ranks, so that every batch has the same
  // weight, even after other ranks have ended. If false, sums are divided by the number of ranks
  // with inputs.
  bool divide_by_initial_world_size = true;
  // When the first rank's inputs end, all ranks throw EarlyTermination: that rank from finish(),
  // the others from their next round.
  bool throw_on_early_termination = false;
  // Forward and backward of the loop on a batch without rows. fully_shard() needs it: a rank whose
  // inputs have ended runs it to take part in the other ranks' gathers.
  //
  //   .empty_step = [&] { loss(model->forward(none)).sum().backward(); }
  std::function<void()> empty_step = nullptr;
};

// The state of a round that all ranks know.
struct JoinRound {
  int active = 1;        // ranks that still have inputs
  int first_active = 0;  // the lowest of them
};

class Joinable;

// The interface of Join for its joinables.
class JoinLink {
 public:
  virtual ~JoinLink() = default;
  [[nodiscard]] virtual const JoinOptions& options() const = 0;
  // Called on a rank with inputs: announces the next round. Blocks until all ranks have announced
  // it or have ended. Throws Mismatch, or EarlyTermination.
  virtual JoinRound announce(const Joinable& joinable, int round) = 0;
  // Returns the result of the last announcement.
  [[nodiscard]] virtual JoinRound latest() const = 0;
  // For Joinable::shadow(): runs options().empty_step, in which announce() follows the other ranks.
  // The first announcement must be the shadowed round. Throws Mismatch if an announcement differs
  // from the other ranks' round.
  virtual void run_empty_step() = 0;
};

// An object that communicates in the training loop: the handles of strategies, SyncBatchNorm, and a
// program's own classes.
class Joinable {
 public:
  virtual ~Joinable() = default;
  // For messages: "DistributedDataParallel".
  [[nodiscard]] virtual std::string join_name() const = 0;
  // All joinables of a Join must have the same ranks.
  [[nodiscard]] virtual const Group& join_group() const = 0;

  // The joinable calls announce() before each round of collectives until `link` is set to null.
  // Throws InvalidArgument to refuse options; nothing is changed in that case.
  virtual void set_join(std::shared_ptr<JoinLink> link) = 0;
  // Called when the inputs of this rank have ended, before shadow(). Gradients that the optimizer
  // has already applied must not count again.
  virtual void end_inputs() {}
  // Called on a rank whose inputs have ended: makes the calls of a round that the other ranks have
  // announced. Returns true if a training step follows the round.
  [[nodiscard]] virtual bool shadow(int round, const JoinRound& ranks) = 0;
  // Called instead of shadow() if the other ranks will throw EarlyTermination: matches the calls
  // that they posted before they announced the round.
  virtual void leave(int /*round*/) {}
};

class [[nodiscard]] Join {
 public:
  // Collective. Makes a separate group for announcements. Pass all joinables that the loop uses, in
  // the same order on every rank; they must outlive this object.
  explicit Join(std::vector<Joinable*> joinables, JoinOptions options = {});
  Join(Join&&) noexcept;
  Join& operator=(Join&&) = delete;
  // Not collective. Detaches the joinables. If finish() was not called, other ranks time out.
  ~Join();

  // Call when the inputs of this rank have ended. Blocks until those of all ranks have; calls
  // `after_backward` after each averaged backward() of the others. It must do the same as their
  // loop between backward() and the next forward, including zero_grad(). Throws the exceptions of
  // the collectives; after a ReductionFailed, which the other ranks also get, it may be called
  // again.
  void finish(const std::function<void()>& after_backward);

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
