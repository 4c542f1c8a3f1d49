#include "parallel/server/server_state.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "comm/backend/tensors.h"
#include "parallel/handle_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

namespace lockstep::ps {
namespace {

layout::TensorSlice slice_of(const Key& key, const Piece& piece) {
  if (key.sizes.empty()) return layout::whole_slice(key.sizes);
  layout::Box box = layout::box_of(key.sizes);
  box.offsets.front() = piece.rows.begin;
  box.sizes.front() = piece.rows.length();
  return layout::box_slice(key.sizes, std::move(box));
}

bool has_gradient(const PushedGradients& gradients, std::size_t piece) {
  return gradients.flags.data_ptr<std::uint8_t>()[piece] != 0;
}

std::string worker_list(const std::vector<int>& workers) {
  return formatted("{} {}", workers.size() == 1 ? "worker" : "workers", listed(workers, ", "));
}

// The mean in the order of Group's sums, rounded once.
at::Tensor mean_of(const std::vector<at::Tensor>& values) {
  return reduce_in_tree(values, Op::average).to(values.front().scalar_type());
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<Part>& parts) {
  std::vector<at::Tensor> tensors;
  for (const Part& part : parts) tensors.push_back(part.tensor);
  return tensors;
}

ServedParameters::ServedParameters(std::span<const Key> keys, std::vector<Piece> pieces,
                                   const at::Tensor& values, const MakeOptimizer& make_optimizer)
    : pieces_(std::move(pieces)),
      whole_(keys, pieces_, Share::Kind::whole),
      by_rows_(keys, pieces_, Share::Kind::by_rows) {
  const Share all(keys, pieces_, Share::Kind::all);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Key& key = keys[static_cast<std::size_t>(pieces_[i].key)];
    parameters_.push_back(all.view(values, i).clone().requires_grad_());
    parts_.push_back({key.name, parameters_.back(), {}, slice_of(key, pieces_[i])});
  }
  if (!parts_.empty()) {
    optimizer_ = make_optimizer(parts_);
    check(optimizer_ != nullptr,
          "parameter server: ServerOptions::optimizer must return an optimizer, found null");
  }
}

void ServedParameters::update(std::span<const PushedGradients* const> gradients,
                              const std::function<void(torch::optim::Optimizer&)>& step) {
  if (!optimizer_) return;
  {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < whole_.size(); ++i) set_whole(i, gradients);
    for (std::size_t i = 0; i < by_rows_.size(); ++i) set_rows(i, gradients);
  }
  step(*optimizer_);
}

void ServedParameters::request(std::string_view text, const OnRequest& action) {
  action(text, parts_, optimizer_.get());
}

void ServedParameters::set_whole(std::size_t i, std::span<const PushedGradients* const> gradients) {
  const std::size_t piece = whole_.number(i);
  at::Tensor& gradient = parameters_[piece].mutable_grad();
  std::vector<at::Tensor> values;
  bool any = false;
  for (const PushedGradients* one : gradients) {
    const bool has = has_gradient(*one, piece);
    any = any || has;
    values.push_back(has ? whole_.view(one->whole, i) : at::zeros_like(parameters_[piece]));
  }
  if (!any) return gradient.reset();
  gradient = values.size() == 1 ? values.front() : mean_of(values);
}

void ServedParameters::set_rows(std::size_t i, std::span<const PushedGradients* const> gradients) {
  const std::size_t piece = by_rows_.number(i);
  at::Tensor& gradient = parameters_[piece].mutable_grad();
  if (std::ranges::none_of(gradients, [&](auto* one) { return has_gradient(*one, piece); }))
    return gradient.reset();
  if (!gradient.defined()) gradient = at::zeros_like(parameters_[piece]);
  gradient.zero_();
  std::vector<at::Tensor> all_rows, values;
  for (const PushedGradients* one : gradients) all_rows.push_back(one->rows[i]);
  at::Tensor rows = std::get<0>(at::_unique(at::cat(all_rows)));  // sorted
  if (rows.numel() == 0) return;
  std::vector<std::int64_t> sizes = parameters_[piece].sizes().vec();
  sizes.front() = rows.numel();
  for (const PushedGradients* one : gradients) {
    values.push_back(at::zeros(sizes, parameters_[piece].options().requires_grad(false)));
    if (one->rows[i].numel() > 0)
      values.back().index_copy_(0, at::searchsorted(rows, one->rows[i]), one->values[i]);
  }
  gradient.index_copy_(0, rows, values.size() == 1 ? values.front() : mean_of(values));
}

std::pair<ServedParameters::Tensors, ServedParameters::Tensors> ServedParameters::cut_rows(
    const at::Tensor& counts, const at::Tensor& rows, const at::Tensor& values) const {
  Tensors rows_of_pieces, values_of_pieces;
  std::int64_t row = 0, byte = 0;
  for (std::size_t i = 0; i < by_rows_.size(); ++i) {
    const at::Tensor& parameter = parameters_[by_rows_.number(i)];
    const std::int64_t count = counts.data_ptr<std::int64_t>()[i];
    const std::int64_t row_bytes =
        static_cast<std::int64_t>(parameter.nbytes()) / parameter.size(0);
    check_input(
        count >= 0 && row + count <= rows.numel() && byte + count * row_bytes <= values.numel(),
        "parameter server: a push has fewer rows than it announces, {}", count);
    at::Tensor own = rows.narrow(0, row, count);
    check_input(count == 0 || (own.min().item<std::int64_t>() >= 0 &&
                               own.max().item<std::int64_t>() < parameter.size(0)),
                "parameter server: a push has a row that does not exist");
    std::vector<std::int64_t> sizes = parameter.sizes().vec();
    sizes.front() = count;
    rows_of_pieces.push_back(own);
    values_of_pieces.push_back(values.narrow(0, byte, count * row_bytes)
                                   .clone()  // aligned for the dtype
                                   .view(parameter.scalar_type())
                                   .view(sizes));
    row += count;
    byte += count * row_bytes;
  }
  return {std::move(rows_of_pieces), std::move(values_of_pieces)};
}

void ServedParameters::read(const at::Tensor& buffer) const {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < whole_.size(); ++i)
    whole_.view(buffer, i).copy_(parameters_[whole_.number(i)]);
}

at::Tensor ServedParameters::read_rows(std::size_t piece, const at::Tensor& rows) const {
  at::NoGradGuard no_grad;
  check_input(piece < by_rows_.size(),
              "parameter server: rows of piece {} were requested, but only {} are sent by rows",
              piece, by_rows_.size());
  const std::int64_t count = parameters_[by_rows_.number(piece)].size(0);
  check_input(rows.numel() == 0 ||
                  (rows.min().item<std::int64_t>() >= 0 && rows.max().item<std::int64_t>() < count),
              "parameter server: expected a request for rows from 0 to {}, found others",
              count - 1);
  return at::index_select(parameters_[by_rows_.number(piece)], 0, rows);
}

ServerState::ServerState(const Meeting& meeting, int number, ServerOptions options,
                         EndConnections end)
    : meeting_(meeting),
      number_(number),
      options_(std::move(options)),
      end_(std::move(end)),
      clocks_(options_.consistency, options_.staleness, meeting.workers) {}

void ServerState::throw_if_failed() {
  if (failure_) throw Aborted(failure_text_);
}

void ServerState::wait(Lock& lock, Duration limit, const std::function<bool()>& condition,
                       const std::function<std::string()>& overdue) {
  const auto deadline = Deadline::after(limit);
  for (;;) {
    throw_if_failed();
    if (condition()) return;
    if (deadline.passed()) throw Timeout(overdue());
    changed_.wait_for(lock, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
}

bool ServerState::meet_keys(int worker, const std::vector<Key>& keys,
                            const std::vector<Key>& constants) {
  Lock lock(mutex_);
  if (worker == 0 && !has_keys_) {
    keys_ = keys;
    constant_keys_ = constants;
    pieces_ = plan_keys(keys_, meeting_.servers)[static_cast<std::size_t>(number_)];
    has_keys_ = true;
    changed_.notify_all();
    return true;
  }
  wait(
      lock, meeting_.join_timeout, [&] { return has_keys_; },
      [&] {
        return formatted("worker 0 has not arrived within {}",
                         format_duration(meeting_.join_timeout));
      });
  if (keys == keys_ && constants == constant_keys_) return false;
  const bool are_trained = keys != keys_;
  auto [at_0, here] =
      are_trained ? first_difference(keys_, keys) : first_difference(constant_keys_, constants);
  Mismatch problem(formatted("{} differ: worker 0 has {}; worker {} has {}",
                             are_trained ? "parameters" : "buffers or frozen parameters", at_0,
                             worker, here));
  const bool begins = worker < meeting_.workers;
  lock.unlock();
  if (begins) fail(std::make_exception_ptr(problem), problem.what());
  throw problem;
}

void ServerState::set_values(const at::Tensor& values, const at::Tensor& constants) {
  const std::int64_t expected = Share(keys_, pieces_, Share::Kind::all).bytes();
  std::int64_t of_constants = 0;
  if (number_ == 0)
    for (const Key& key : constant_keys_) of_constants += key.rows() * key.row_bytes();
  check_input(values.numel() == expected && constants.numel() == of_constants,
              "parameter server {}: expected {} bytes of values and {} of constants, found {} and "
              "{}",
              number_, expected, of_constants, values.numel(), constants.numel());
  std::unique_ptr<ServedParameters> made;
  try {
    made = std::make_unique<ServedParameters>(keys_, pieces_, values, options_.optimizer);
  } catch (...) {
    auto problem = std::current_exception();
    fail(problem, formatted("parameter server {} could not make its optimizer: {}", number_,
                            parallel::exception_text(problem)));
    throw;
  }
  Lock lock(mutex_);
  parameters_ = std::move(made);
  constants_ = constants;
  changed_.notify_all();
}

std::int64_t ServerState::prepare(int worker) {
  Lock lock(mutex_);
  wait(
      lock, meeting_.join_timeout, [&] { return parameters_ != nullptr; },
      [&] {
        return formatted("worker 0 has sent no values within {}",
                         format_duration(meeting_.join_timeout));
      });
  return clocks_.prepare(worker);
}

void ServerState::begin(int worker, std::int64_t step) {
  Lock lock(mutex_);
  throw_if_failed();
  if (!clocks_.may_begin(worker)) throw Aborted("the server has excluded this worker");
  clocks_.begin(worker, step);
  ++report_.joined;
  update(lock, worker);
  changed_.notify_all();
}

void ServerState::remove(int worker, bool lost) {
  Lock lock(mutex_);
  if (worker == 0 && !parameters_ && !failure_) {
    lock.unlock();
    PeerLost problem(
        formatted("parameter server {}: worker 0 was lost before it had sent its "
                  "values",
                  number_));
    fail(std::make_exception_ptr(problem), problem.what());
    lock.lock();
  }
  clocks_.remove(worker);
  if (lost && std::ranges::count(report_.lost, worker) == 0) report_.lost.push_back(worker);
  update(lock, worker);
  changed_.notify_all();
}

void ServerState::push(int worker, std::shared_ptr<const PushedGradients> gradients) {
  Lock lock(mutex_);
  throw_if_failed();
  if (!clocks_.is_present(worker)) throw Aborted("the server has excluded this worker");
  pushed_[worker] = std::move(gradients);
  clocks_.push(worker);
  update(lock, worker);
  changed_.notify_all();
}

void ServerState::update(Lock& lock, int worker) {
  if (failure_ || !parameters_) return;
  try {
    auto step = [&](torch::optim::Optimizer& optimizer) {
      if (options_.before_update) options_.before_update(optimizer, clocks_.updates());
      if (options_.step) {
        options_.step(optimizer);
      } else {
        optimizer.step();
      }
    };
    auto make = [&](const std::vector<const PushedGradients*>& gradients) {
      std::unique_lock values(values_mutex_);
      parameters_->update(gradients, step);
      clocks_.count_update();
    };
    if (options_.consistency != Consistency::synchronous) {
      auto found = pushed_.find(worker);
      if (found == pushed_.end()) return;
      make({found->second.get()});
      pushed_.erase(found);
      return;
    }
    while (clocks_.is_update_due()) {
      std::vector<const PushedGradients*> gradients;
      for (int one : clocks_.contributors()) gradients.push_back(pushed_.at(one).get());
      make(gradients);
      pushed_.clear();
    }
  } catch (...) {
    auto problem = std::current_exception();
    const std::string text =
        formatted("update {} of parameter server {} failed: {}", clocks_.updates(), number_,
                  parallel::exception_text(problem));
    lock.unlock();
    fail(problem, text);
    lock.lock();
  }
}

void ServerState::remove_overdue(Lock& lock, int worker) {
  std::vector<int> overdue = clocks_.waits_for(worker);
  std::erase_if(overdue, [&](int one) { return pulling_.contains(one); });
  for (int one : overdue) {
    clocks_.remove(one);
    if (std::ranges::count(report_.lost, one) == 0) report_.lost.push_back(one);
  }
  update(lock, worker);
  changed_.notify_all();
  const std::string text = formatted("{} had waited {} for it at step {}", worker_list({worker}),
                                     format_duration(meeting_.timeout),
                                     clocks_.is_present(worker) ? clocks_.clock(worker) : 0);
  lock.unlock();
  for (int one : overdue) end_(one, text);
  lock.lock();
}

void ServerState::pull(int worker, const at::Tensor& buffer) {
  {
    Lock lock(mutex_);
    pulling_.insert(worker);
    ScopeExit goes_on([&] { pulling_.erase(worker); });
    auto may_go_on = [&] { return !clocks_.is_present(worker) || clocks_.may_pull(worker); };
    while (!may_go_on()) {
      try {
        wait(lock, meeting_.timeout, may_go_on, [] { return std::string(); });
      } catch (const Timeout&) {
        remove_overdue(lock, worker);
      }
    }
    throw_if_failed();
    if (!clocks_.is_present(worker)) throw Aborted("the server has excluded this worker");
  }
  std::shared_lock values(values_mutex_);
  parameters_->read(buffer);
}

void ServerState::request(std::string_view text) {
  check_input(
      options_.on_request != nullptr,
      "parameter server {}: a worker has a request, but ServerOptions::on_request is not set",
      number_);
  try {
    std::unique_lock values(values_mutex_);
    parameters_->request(text, options_.on_request);
  } catch (...) {
    auto problem = std::current_exception();
    fail(problem, formatted("a request to parameter server {} failed: {}", number_,
                            parallel::exception_text(problem)));
    throw;
  }
}

at::Tensor ServerState::pull_rows(std::size_t piece, const at::Tensor& rows) {
  std::shared_lock values(values_mutex_);
  return parameters_->read_rows(piece, rows);
}

void ServerState::fail(std::exception_ptr problem, const std::string& text) {
  {
    Lock lock(mutex_);
    if (failure_) return;
    failure_ = std::move(problem);
    failure_text_ = text;
    changed_.notify_all();
  }
  end_({}, text);
}

bool ServerState::has_failed() {
  Lock lock(mutex_);
  return failure_ != nullptr;
}

std::string ServerState::failure_text() {
  Lock lock(mutex_);
  return failure_text_;
}

void ServerState::rethrow_failure() {
  Lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void ServerState::check_awaited(Deadline deadline) {
  if (!deadline.passed()) return;
  std::vector<int> awaited;
  {
    Lock lock(mutex_);
    awaited = clocks_.awaited();
  }
  if (awaited.empty()) return;
  Timeout problem(formatted("parameter server {}: {} of {} did not arrive within {}", number_,
                            worker_list(awaited), meeting_.workers,
                            format_duration(meeting_.join_timeout)));
  fail(std::make_exception_ptr(problem), problem.what());
}

bool ServerState::is_over() {
  Lock lock(mutex_);
  return clocks_.is_empty();
}

ServerReport ServerState::report() {
  Lock lock(mutex_);
  report_.updates = clocks_.updates();
  std::ranges::sort(report_.lost);
  return report_;
}

}  // namespace lockstep::ps
