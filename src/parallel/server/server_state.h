// The state that the threads of a server share: the clocks, the parameters, and the reason of its
// failure.
#pragma once

#include "parallel/server/clocks.h"
#include "parallel/server/key_plan.h"

#include <lockstep/parallel/server/server.h>

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::ps {

// ServedParameters: a server's rows of the parameters, and their optimizer.
//
// Not thread-safe: its owner lets one thread update, or several read.

// A worker's gradients of one step, as they came.
struct PushedGradients {
  at::Tensor whole;                // a message of Share::Kind::whole
  at::Tensor flags;                // uint8 of each piece: whether it has a gradient
  std::vector<at::Tensor> rows;    // of each piece by rows: int64, sorted, each once
  std::vector<at::Tensor> values;  // their gradients
};

class ServedParameters {
 public:
  // `values`: a message of Share::Kind::all.
  ServedParameters(std::span<const Key> keys, std::vector<Piece> pieces, const at::Tensor& values,
                   const MakeOptimizer& make_optimizer);

  [[nodiscard]] const Share& whole() const { return whole_; }
  [[nodiscard]] const Share& by_rows() const { return by_rows_; }
  [[nodiscard]] std::size_t pieces() const { return pieces_.size(); }

  // Splits a message with the rows of all pieces by rows into one tensor per piece. Throws BadInput
  // if these pieces do not have such rows.
  using Tensors = std::vector<at::Tensor>;
  [[nodiscard]] std::pair<Tensors, Tensors> cut_rows(const at::Tensor& counts,
                                                     const at::Tensor& rows,
                                                     const at::Tensor& values) const;
  // Calls `step` once, with the mean of `gradients` (at least one).
  void update(std::span<const PushedGradients* const> gradients,
              const std::function<void(torch::optim::Optimizer&)>& step);
  // Calls `action`, which is ServerOptions::on_request.
  void request(std::string_view text, const OnRequest& action);
  // Writes the values of the whole pieces into a message.
  void read(const at::Tensor& buffer) const;
  // Returns rows of a piece by rows. Numbers count from the first row of the piece.
  [[nodiscard]] at::Tensor read_rows(std::size_t piece, const at::Tensor& rows) const;

 private:
  void set_whole(std::size_t i, std::span<const PushedGradients* const> gradients);
  void set_rows(std::size_t i, std::span<const PushedGradients* const> gradients);

  std::vector<Piece> pieces_;
  Share whole_, by_rows_;
  std::vector<at::Tensor> parameters_;  // by piece
  std::vector<Part> parts_;             // the same
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class ServerState {
 public:
  // Ends the connection of a worker, or of all, for the given reason.
  using EndConnections = std::function<void(std::optional<int> worker, const std::string& reason)>;
  // `end` is called, without a lock, when the server fails, and for a worker that was removed
  // because others have waited for it too long.
  ServerState(const Meeting& meeting, int number, ServerOptions options, EndConnections end);

  // Called for a worker's hello. Blocks until worker 0 has provided the keys. Returns true for
  // worker 0, whose values are needed. If the worker's keys differ from worker 0's, throws Mismatch
  // on all workers that begin together. `constants`: keys of buffers and frozen parameters.
  [[nodiscard]] bool meet_keys(int worker, const std::vector<Key>& keys,
                               const std::vector<Key>& constants);
  // Sets the values of worker 0; `constants` is kept for the other workers. Throws BadInput if
  // their lengths do not match its keys.
  void set_values(const at::Tensor& values, const at::Tensor& constants);
  // Blocks until the values are there; returns the step with which the worker can begin.
  [[nodiscard]] std::int64_t prepare(int worker);
  void begin(int worker, std::int64_t step);
  void remove(int worker, bool lost);

  // The worker must not change the gradients until its next push.
  void push(int worker, std::shared_ptr<const PushedGradients> gradients);
  // Blocks until the worker may continue, then reads. Removes workers for which it has waited
  // longer than the timeout of a request, unless they are waiting, too: a stopped process must not
  // stop the others.
  void pull(int worker, const at::Tensor& buffer);
  [[nodiscard]] at::Tensor pull_rows(std::size_t piece, const at::Tensor& rows);

  // Constant once the values are there.
  [[nodiscard]] const ServedParameters& parameters() const { return *parameters_; }
  [[nodiscard]] const at::Tensor& constants() const { return constants_; }

  // Runs ServerOptions::on_request while no other thread changes or reads the values.
  void request(std::string_view text);

  // Fails the server: all waiting calls throw. The first call ends all connections.
  void fail(std::exception_ptr problem, const std::string& text);
  [[nodiscard]] bool has_failed();
  [[nodiscard]] std::string failure_text();
  void rethrow_failure();
  // Fails the server if the deadline has passed and initial workers have not joined.
  void check_awaited(Deadline deadline);
  // Returns true if the last worker has gone.
  [[nodiscard]] bool is_over();
  [[nodiscard]] ServerReport report();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void wait(Lock& lock, Duration limit, const std::function<bool()>& condition,
            const std::function<std::string()>& overdue);
  void throw_if_failed();
  // Called with the mutex locked; unlocks it temporarily. Removes the workers that `worker` has
  // waited for.
  void remove_overdue(Lock& lock, int worker);
  // Called with the mutex locked: makes the updates that are due.
  void update(Lock& lock, int worker);

  const Meeting meeting_;
  const int number_;
  const ServerOptions options_;
  const EndConnections end_;
  std::mutex mutex_;  // guards everything except the values
  std::condition_variable changed_;
  Clocks clocks_;
  std::vector<Key> keys_, constant_keys_;
  std::vector<Piece> pieces_;
  bool has_keys_ = false;
  std::set<int> pulling_;           // workers that wait in pull()
  std::shared_mutex values_mutex_;  // guards the values in parameters_; taken after mutex_
  std::unique_ptr<ServedParameters> parameters_;
  at::Tensor constants_;
  std::map<int, std::shared_ptr<const PushedGradients>> pushed_;  // for the update that is due
  std::exception_ptr failure_;
  std::string failure_text_;
  ServerReport report_;
};

}  // namespace lockstep::ps
