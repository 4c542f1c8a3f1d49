#include "parallel/sharded/unit_reducer.h"

#include "base/check.h"
#include "base/format.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "parallel/write_watch.h"

#include <algorithm>
#include <utility>

namespace lockstep::sharded {
namespace {

// Maximum reductions in flight at levels gradients and full; each holds the gradients of a whole
// unit.
constexpr std::size_t most_in_flight = 2;

}  // namespace

UnitReducer::UnitReducer(Groups& groups, Unsharder& unsharder,
                         const std::shared_ptr<BufferPool>& pool,
                         std::shared_ptr<LazyGradients> deferred, const ShardOptions& options)
    : groups_(groups), unsharder_(unsharder), options_(options), deferred_(std::move(deferred)) {
  int count = static_cast<int>(unsharder.units().size());
  for (int u = 0; u < count; ++u) {
    gradients_.push_back(nullptr);
    if (!unit(u).trains()) continue;
    gradients_.back() =
        std::make_unique<UnitGradients>(unit(u), groups_.reduce, groups_.replicas, pool, deferred_);
    for (int i = 0; i < static_cast<int>(unit(u).parameters().size()); ++i) {
      places_.push_back({u, i});
      parameters_.push_back(unit(u).parameters()[static_cast<std::size_t>(i)]);
    }
    order_.push_back(u);
  }
  // Units that are used first, and parameters outside of units, are expected to complete last.
  std::ranges::reverse(order_);
  std::ranges::stable_partition(order_, [&](int u) { return !unit(u).name().starts_with("rest"); });
}

void UnitReducer::check_parameters() const {
  for (const auto& one : unsharder_.units()) {
    const std::string* stranger = one->first_stranger();
    check(stranger == nullptr,
          "{} is no longer the sharded parameter: module->to(), module->load() or set_data() has "
          "replaced it; make the handle after that, and load by load_state_dict()",
          stranger == nullptr ? std::string() : *stranger);
  }
}

void UnitReducer::begin() {
  close_rows();
  discard_all();
  std::exchange(sent_work_, Work()).wait();
}

void UnitReducer::begin_reduction(bool /*posts_early*/) {
  awaited_.assign(gradients_.size(), 0);
  for (const auto& [u, number] : places_) ++awaited_[static_cast<std::size_t>(u)];
  posted_ = 0;
}

// Nothing was gathered since the last backward(), so peers may still read this rank's row.
void UnitReducer::close_rows() {
  if (!deferred_ || !deferred_->are_open()) return;
  deferred_->settle();
  groups_.reduce.barrier({.tag = "gradients are written again", .timeout = options_.timeout})
      .wait();
}

void UnitReducer::accept(int i) {
  const auto& [u, number] = place(i);
  gradients(u).accept(number);
  if (--awaited_[static_cast<std::size_t>(u)] > 0) return;
  unsharder_.unit_done(u);
  // A rank that leaves out a parameter of a unit posts the unit only in post_rest(). If another
  // rank waited for it before, it would post no more gathers, which the first rank needs.
  const bool may_wait = options_.find_unused_parameters && options_.level == ShardLevel::full;
  if (may_wait) return;
  post_ready();
  if (gradients(u).keeps_buffer()) return;
  while (in_flight_.size() > most_in_flight) publish_oldest();
}

void UnitReducer::keep(int i) {
  const auto& [u, number] = place(i);
  gradients(u).keep(number);
}

void UnitReducer::post_ready() {
  while (posted_ < order_.size() && awaited_[static_cast<std::size_t>(order_[posted_])] == 0) {
    int u = order_[posted_++];
    gradients(u).post();
    in_flight_.push_back(u);
  }
}

// Publishes the gradients of a unit if all of its parameters had a gradient on this rank.
void UnitReducer::publish_oldest() {
  UnitGradients& oldest = gradients(in_flight_.front());
  oldest.forward();
  oldest.publish();
  in_flight_.pop_front();
}

void UnitReducer::discard_all() {
  for (const auto& gradients : gradients_)
    if (gradients) gradients->discard();
  in_flight_.clear();
}

void UnitReducer::end_backward(bool reduces) {
  unsharder_.end_iteration();
  if (reduces) return;
  for (const auto& gradients : gradients_)
    if (gradients) gradients->end_keeping();
}

bool UnitReducer::contribute_absent(int i) {
  const auto& [u, number] = place(i);
  --awaited_[static_cast<std::size_t>(u)];
  gradients(u).drop_if_cleared(number);
  bool is_there = dispatch::has_gradient(parameter(i));
  if (is_there) {
    gradients(u).accept(number);
  } else {
    gradients(u).skip(number);
  }
  return is_there;
}

void UnitReducer::post_rest(const parallel::StepStatus& own, bool exchanges) {
  post_ready();
  status_ = own;
  if (!exchanges || groups_.whole.size() == 1) return;
  sent_ = status_.tensor().to(parameter(0).device(), /*non_blocking=*/false, /*copy=*/true);
  sent_work_ = groups_.whole.all_reduce(sent_, Op::sum,
                                        {.tag = "end of backward", .timeout = options_.timeout});
}

parallel::StepStatus UnitReducer::wait() {
  std::exchange(sent_work_, Work()).synchronize();  // the host reads the status
  if (sent_.defined()) status_.tensor().copy_(std::exchange(sent_, at::Tensor()));
  unsharder_.all_have_read();
  return status_;
}

void UnitReducer::compare_writes(Group& group, const CallOptions& call) {
  const std::vector<Unsharder::Writes> writes = unsharder_.take_writes();
  std::vector<std::int64_t> own;
  for (const auto& [print, offset] : writes) own.insert(own.end(), {print, offset});
  const auto all = modules::numbers_of_all(group, std::move(own), call);
  const auto write_of = [&](int rank, std::size_t u) -> Unsharder::Writes {
    const std::size_t place = 2 * (static_cast<std::size_t>(rank) * writes.size() + u);
    return {all[place], all[place + 1]};
  };
  for (std::size_t u = 0; u < writes.size(); ++u)
    for (int rank = 1; rank < group.size(); ++rank) {
      const Unsharder::Writes here = write_of(rank, u), of_root = write_of(0, u);
      if (here.fingerprint == of_root.fingerprint) continue;
      const Unsharder::Writes& writer = here.fingerprint != 0 ? here : of_root;
      const int number = static_cast<int>(u);
      throw parallel::ComparedMismatch(formatted(
          "{}: parameter {} of unit {} was written in place with other values on rank {} than on "
          "rank 0, as an embedding with max_norm does in forward(), and each shard would keep its "
          "own rank's; write it after the optimizer's step(), the same on all ranks "
          "(weight.renorm_(2, 0, max_norm) in place of max_norm)",
          call.tag, unit(number).parameter_at(writer.offset), unit(number).name(), rank));
    }
}

void UnitReducer::discard() {
  forward_all();
  discard_all();
}

std::vector<bool> UnitReducer::unused_in(int u, const parallel::StepStatus& all) const {
  std::vector<bool> unused;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].unit == u)
      unused.push_back(all.missing(static_cast<int>(i)) == groups_.whole.size());
  return unused;
}

// Ranks on which units were complete before the end of backward() have done this already.
void UnitReducer::forward_all() {
  for (int u : in_flight_) gradients(u).forward();
}

void UnitReducer::publish(const parallel::StepStatus& all) {
  forward_all();
  while (!in_flight_.empty()) {
    int u = in_flight_.front();
    gradients(u).publish(unused_in(u, all));
    in_flight_.pop_front();
  }
}

void UnitReducer::adopt_order(const std::vector<int>& order) {
  begin_reduction(/*posts_early=*/true);
  order_.clear();
  for (int i : order) {
    int u = place(i).unit;
    if (--awaited_[static_cast<std::size_t>(u)] == 0) order_.push_back(u);
  }
}

void UnitReducer::end_failed_backward() { unsharder_.end_failed_iteration(); }

void UnitReducer::clear_gradients(bool set_to_none) {
  for (const auto& gradients : gradients_)
    if (gradients) gradients->clear(set_to_none);
}

bool UnitReducer::has_gradients() const {
  return std::ranges::any_of(unsharder_.units(), [](const auto& unit) {
    return std::ranges::any_of(unit->slices(), dispatch::has_gradient);
  });
}

void UnitReducer::free_buffers() {
  for (const auto& gradients : gradients_)
    if (gradients) gradients->free_buffers();
}

std::int64_t UnitReducer::kept_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& gradients : gradients_)
    if (gradients) bytes += gradients->kept_bytes();
  return bytes;
}

}  // namespace lockstep::sharded
