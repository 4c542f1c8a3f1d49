// Join: ranks whose inputs end at different times train together until the last one has ended. As
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
// A rank that has come to finish() takes part in the collectives of the others, with gradients of
// zero and batches without rows, and does after each of their averaged backward() calls what they
// do: so its parameters, buffers and the state of its optimizer stay equal to theirs. (PyTorch's
// leaves the optimizer out, and copies the parameters at the end.)
//
// How: before each round of collectives the active ranks announce it, in an all_gather of one
// number a rank. A round is what one joinable does without waiting for anything else: the end of a
// backward() with all that it posts, the forward of one SyncBatchNorm layer. Active ranks announce
// the same rounds in the same order; a difference is a Mismatch that names both. What communicates
// inside the loop and is no joinable meets no partner on ranks that have ended: it runs into its
// deadline. With fully_shard() a whole forward and backward is one round, which begins with the
// first use of a parameter; an evaluation inside the loop must not record gradients. A use without
// gradient mode announces nothing: one that gathers, as the write of an embedding with max_norm
// does, runs into its deadline once the inputs of a rank have ended.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// With throw_on_early_termination, on every rank: the inputs of some rank have ended.
class EarlyTermination : public Error {
  using Error::Error;
};

struct JoinOptions {
  // Averages are sums divided by the number of all ranks, so that every batch counts the same
  // whether or not others have ended; else by the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
  // When the first rank's inputs end, all ranks get an EarlyTermination: from finish() there, from
  // the next round of the others.
  bool throw_on_early_termination = false;
  // Forward and backward of the loop on a batch without rows. fully_shard() needs it: a rank whose
  // inputs have ended gathers what the others gather by doing what they do.
  //
  //   .empty_step = [&] { loss(model->forward(none)).sum().backward(); }
  std::function<void()> empty_step = nullptr;
};

// What all ranks know of a round.
struct JoinRound {
  int active = 1;        // ranks that still have inputs
  int first_active = 0;  // the lowest of them
};

class Joinable;

// What Join gives to its joinables.
class JoinLink {
 public:
  virtual ~JoinLink() = default;
  [[nodiscard]] virtual const JoinOptions& options() const = 0;
  // On a rank with inputs: says which round comes. Blocks until all ranks have said it, or have
  // ended. Throws Mismatch, or EarlyTermination.
  virtual JoinRound announce(const Joinable& joinable, int round) = 0;
  // What the last announcement has found.
  [[nodiscard]] virtual JoinRound latest() const = 0;
  // For Joinable::shadow(): runs options().empty_step, in which announce() follows the others. Its
  // first announcement is the round that is shadowed; Mismatch where it or a later one is another.
  virtual void run_empty_step() = 0;
};

// What communicates in the training loop: the handles of strategies, SyncBatchNorm, and classes of
// a program's own.
class Joinable {
 public:
  virtual ~Joinable() = default;
  // For messages: "DistributedDataParallel".
  [[nodiscard]] virtual std::string join_name() const = 0;
  // All joinables of a Join have the same ranks.
  [[nodiscard]] virtual const Group& join_group() const = 0;

  // Until it is given null, the joinable calls announce() before each round of collectives.
  // InvalidArgument refuses options, and then nothing has changed.
  virtual void set_join(std::shared_ptr<JoinLink> link) = 0;
  // The inputs of this rank have ended, and shadow() comes. Gradients that its optimizer has taken
  // must not count again.
  virtual void end_inputs() {}
  // On a rank whose inputs have ended: makes the calls of a round that the others have announced.
  // Returns whether a training step follows it.
  [[nodiscard]] virtual bool shadow(int round, const JoinRound& ranks) = 0;
  // Instead, where the others will throw EarlyTermination: meets the calls that they have posted
  // before they announced the round.
  virtual void leave(int /*round*/) {}
};

class [[nodiscard]] Join {
 public:
  // Collective: makes a group of its own for announcements. All joinables that the loop uses, in
  // the same order on every rank; they outlive this object.
  explicit Join(std::vector<Joinable*> joinables, JoinOptions options = {});
  Join(Join&&) noexcept;
  Join& operator=(Join&&) = delete;
  // Local: the joinables are on their own again. Without finish() before, other ranks run into
  // their deadline.
  ~Join();

  // The inputs of this rank have ended. Blocks until those of all ranks have; `after_backward` is
  // called after each averaged backward() of the others, and must do what their loop does between
  // backward() and the next forward, zero_grad() included. Throws what the collectives throw; after
  // a ReductionFailed, which the others get too, it may be called again.
  void finish(const std::function<void()>& after_backward);

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep

#pragma GCC visibility pop
