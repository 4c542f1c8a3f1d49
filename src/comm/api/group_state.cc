#include "comm/api/group_state.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/flight_record.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/backend/tensors.h"
#include "rank_env/variables.h"
#include "sys/own_process.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

namespace lockstep {
namespace {

void check_timeout(Duration timeout, std::string_view name) {
  if (timeout <= Duration::zero()) {
    throw InvalidArgument(
        formatted("group {}: timeout must be positive, found {} ns", name, timeout.count()));
  }
}

// Backends write through addresses, which autograd does not notice. With another version of the
// output, backward() throws instead of using overwritten values.
void bump_version(const at::Tensor& output) {
  if (output.defined() && !output.is_inference()) output.unsafeGetTensorImpl()->bump_version();
}

// Performs a collective in a group of one rank: copies the input to the output.
void perform_alone(const Call& call) {
  if (!call.input.defined() || !call.output.defined() || call.input.is_same(call.output)) return;
  if (call.input.const_data_ptr() == call.output.const_data_ptr()) return;
  at::NoGradGuard no_grad;
  flat(call.output).copy_(flat(call.input));
}

// Returns the tensor whose size is equal on all ranks; undefined for a barrier.
const at::Tensor& operand(const Call& call) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::scatter:
    case Collective::recv:
      return call.output;
    default:
      return call.input;
  }
}

// Fills in the dtype and the number of elements, which are equal on all ranks.
void describe_operand(Call& call) {
  const auto& tensor = operand(call);
  if (!tensor.defined()) return;
  call.dtype = dtype_of(tensor.scalar_type());
  call.elements = tensor.numel();
}

// Returns the elements of the input that this rank sends in the algorithm of GroupTraffic::bytes.
std::int64_t elements_sent(const Call& call, int rank, int size) {
  const std::int64_t all = call.input.numel();
  const std::int64_t own = all / size + (rank < all % size ? 1 : 0);  // the share of this rank
  const std::int64_t others = size - 1;
  switch (call.collective) {
    case Collective::all_reduce:
      return all - own + own * others;
    case Collective::reduce:
      return rank == call.root ? all - own : all;
    case Collective::broadcast:
      return rank == call.root ? all * others : 0;
    case Collective::all_gather:
      return all * others;
    case Collective::all_to_all:
      return all - (call.input_counts.empty() ? own : call.input_counts[rank]);
    case Collective::gather:
      return rank == call.root ? 0 : all;
    case Collective::reduce_scatter:
    case Collective::scatter:
      return all - call.output.numel();
    case Collective::send:
      return all;
    case Collective::recv:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

std::int64_t bytes_sent(const Call& call, int rank, int size) {
  if (!call.input.defined()) return 0;
  return elements_sent(call, rank, size) * static_cast<std::int64_t>(call.input.element_size());
}

std::vector<int> world_ranks_of(const GroupNames& names, int size) {
  auto ranks = all_ranks(size);
  std::ranges::transform(ranks, ranks.begin(), [&](int rank) { return names.world_rank(rank); });
  return ranks;
}

// Returns true if the call was refused because of its arguments; the group then stays usable.
bool is_refusal(const std::exception& error) {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
         dynamic_cast<const BadInput*>(&error) != nullptr;
}

}  // namespace

GroupState::GroupState(std::shared_ptr<Backend> backend, GroupNames names, Duration timeout,
                       std::shared_ptr<diagnose::FlightRecorder> recorder)
    : backend_(backend && backend->size() > 1 ? std::move(backend) : nullptr),
      names_(std::move(names)),
      recorder_(backend_ ? std::move(recorder) : nullptr),
      recorded_(recorder_ ? recorder_->add_group(name(), world_ranks_of(names_, backend_->size()))
                          : 0),
      timeout_(timeout),
      counts_(backend_ ? 1 + 2 * static_cast<std::size_t>(backend_->size()) : 0) {
  check_timeout(timeout, name());
}

GroupState::~GroupState() {
  if (!recorder_ || backend_->is_copy_of_parent()) return;
  recorder_->end_group(recorded_);
}

Duration GroupState::timeout() const {
  Lock lock(mutex_);
  return timeout_;
}

void GroupState::set_timeout(Duration timeout) {
  check_timeout(timeout, name());
  Lock lock(mutex_);
  timeout_ = timeout;
}

GroupTraffic GroupState::traffic() const {
  Lock lock(mutex_);
  return traffic_;
}

std::uint64_t GroupState::next_part() {
  if (has_backend()) backend_->check_process();
  Lock lock(mutex_);
  return ++parts_;
}

std::shared_ptr<GroupState> GroupState::part(std::span<const int> ranks, std::string name) const {
  auto backend = ranks.size() > 1 ? this->backend()->subset(ranks, name) : nullptr;
  return std::make_shared<GroupState>(std::move(backend), names_.part(ranks, std::move(name)),
                                      timeout(), recorder_);
}

std::shared_ptr<GroupState> GroupState::on_host(std::string name) const {
  auto backend = has_backend() ? this->backend()->on_host(name) : nullptr;
  return std::make_shared<GroupState>(
      std::move(backend), names_.part(all_ranks(size()), std::move(name)), timeout(), recorder_);
}

std::uint64_t GroupState::post_to_backend(Call& call) {
  const auto channel = channel_of(call.collective, call.root, rank());
  auto& count = counts_.at(channel.index_at(rank()));
  call.id = {channel, count + 1};
  describe_operand(call);
  const auto entry = recorder_ ? recorder_->note_post(recorded_, call) : 0;
  try {
    backend_->post(call);
    ++count;
    ++traffic_.calls;
    traffic_.bytes += bytes_sent(call, backend_->rank(), backend_->size());
    if (entry != 0) recorder_->note_posted(entry);
    return entry;
  } catch (const std::exception& error) {
    if (entry == 0) throw;
    recorder_->note_end(entry, diagnose::Progress::refused);
    // Record the sentence that waiting threads get, without the prefix for later calls.
    if (!is_refusal(error)) recorder_->note_failure(recorded_, diagnose::cause_in(error.what()));
    throw;
  }
}

Work GroupState::post(Call call, const CallOptions& options, std::source_location where) {
  if (options.timeout) check_timeout(*options.timeout, name());
  if (has_backend()) backend_->check_process();  // in a child, mutex_ may stay locked
  Lock lock(mutex_);
  call.tag = options.tag;
  call.timeout = options.timeout.value_or(timeout_);
  call.where = where;
  bump_version(call.output);
  if (has_backend()) {
    const auto entry = post_to_backend(call);
    return {shared_from_this(), call.id, entry};
  }
  alone_failure_.refuse_if_any(name_of(call.collective), name());
  perform_alone(call);
  return {};
}

void GroupState::wait(CallId id, std::uint64_t entry) {
  backend_->check_process();
  if (backend_->has_streams()) {
    if (recorder_) recorder_->note_wait(entry);
    auto when_complete = [recorder = recorder_, entry] {
      if (recorder) recorder->note_end(entry, diagnose::Progress::done);
    };
    bool is_ordered = false;
    noting_failure(entry, [&] { is_ordered = backend_->order(id, std::move(when_complete)); });
    if (is_ordered) return;
  }
  synchronize(id, entry);
}

template <class Wait>
void GroupState::noting_failure(std::uint64_t entry, Wait&& wait) {
  try {
    wait();
  } catch (const std::exception& error) {
    if (entry != 0) {
      recorder_->note_end(entry, diagnose::Progress::failed);
      recorder_->note_failure(recorded_, error.what());
    }
    throw;
  }
}

void GroupState::synchronize(CallId id, std::uint64_t entry) {
  backend_->check_process();
  if (entry == 0) return backend_->wait(id);
  recorder_->note_wait(entry);
  noting_failure(entry, [&] { backend_->wait(id); });
  recorder_->note_end(entry, diagnose::Progress::done);
}

bool GroupState::done(CallId id) { return backend_->is_copy_of_parent() || backend_->done(id); }

// Holds mutex_ until all ranks have called it, because the call is one of the group's posts.
at::Tensor GroupState::empty_node_shared(at::IntArrayRef sizes, const at::TensorOptions& options,
                                         std::source_location where) {
  backend_->check_process();
  Lock lock(mutex_);
  auto agree = [this, where](Call call) LOCKSTEP_REQUIRES(mutex_) {
    call.timeout = timeout_;
    call.where = where;
    const auto entry = post_to_backend(call);
    wait(call.id, entry);
  };
  return backend_->empty_node_shared(sizes, options, agree);
}

void GroupState::abort(std::string_view reason) {
  if (has_backend()) return backend()->abort(reason);
  Lock lock(mutex_);
  alone_failure_.set(
      std::make_exception_ptr(Aborted(formatted("group {}: ended: {}", name(), reason))));
}

Group recorded_world(std::shared_ptr<Backend> backend, Duration timeout) {
  auto recorder = sys::make_shared_of_process<diagnose::FlightRecorder>(diagnose::FlightHeader{
      .rank = backend->rank(),
      .size = backend->size(),
      .backend = std::string(backend->name()),
      .streams = backend->has_streams(),
      .folder = environment::text(rank_env::variable::flight_folder).value_or("")});
  return Group(
      std::make_shared<GroupState>(std::move(backend), GroupNames(), timeout, std::move(recorder)));
}

void Work::wait() {
  if (group_) group_->wait(id_, entry_);
}

void Work::synchronize() {
  if (group_) group_->synchronize(id_, entry_);
}

bool Work::done() const { return !group_ || group_->done(id_); }

std::string write_flight_record(const Group& group, const std::string& folder) {
  static_cast<void>(group.state_->backend());  // throws in a forked child
  auto* recorder = group.state_->recorder();
  check(recorder != nullptr, "the group {} ({}) keeps no flight record", group.name(),
        group.backend());
  const auto& place = folder.empty() ? recorder->header().folder : folder;
  check(!place.empty(), "writing the flight record: no folder is given: pass one, or set {}",
        rank_env::variable::flight_folder);
  return recorder->write(place);
}

namespace {

// Returns the values `mine` of all ranks, in rank order.
std::vector<std::int64_t> exchange(Group group, const std::vector<std::int64_t>& mine,
                                   std::string_view tag, Group::Where where) {
  auto input = at::tensor(mine, at::kLong);
  auto output = at::empty({static_cast<std::int64_t>(mine.size()) * group.size()}, at::kLong);
  group.all_gather(output, input, {.tag = tag}, where).wait();
  return {output.const_data_ptr<std::int64_t>(),
          output.const_data_ptr<std::int64_t>() + output.numel()};
}

// Detects that two ranks passed different lists.
std::int64_t hash_of(std::span<const int> ranks) {
  return static_cast<std::int64_t>(fingerprint_of(ranks));
}

void check_ranks(std::span<const int> ranks, const Group& group) {
  auto refuse = [&](std::string_view why) {
    throw InvalidArgument(
        formatted("subset [{}] of group {}: {}", listed(ranks, ", "), group.name(), why));
  };
  if (ranks.empty()) refuse("no rank is named");
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::ranges::sort(sorted);
  if (sorted.front() < 0 || sorted.back() >= group.size())
    refuse(formatted("ranks are 0..{}", group.size() - 1));
  if (std::ranges::adjacent_find(sorted) != sorted.end()) refuse("a rank is named twice");
}

}  // namespace

Group Group::split(int color, int key, Where where) const {
  auto prefix = formatted("{}/split#{}", name(), state_->next_part());
  auto all = exchange(*this, {color, key}, "split", where);
  std::vector<std::tuple<std::int64_t, int>> members;  // key, rank
  for (int rank = 0; rank < size(); ++rank) {
    if (all[2 * rank] == color) members.emplace_back(all[2 * rank + 1], rank);
  }
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (auto [unused, rank] : members) ranks.push_back(rank);
  return Group(state_->part(ranks, formatted("{}/{}", prefix, color)));
}

std::optional<Group> Group::subset(std::span<const int> ranks, Where where) const {
  check_ranks(ranks, *this);
  auto part = formatted("{}/subset#{}", name(), state_->next_part());
  auto tag = formatted("subset [{}]", listed(ranks, ", "));
  auto hashes = exchange(*this, {hash_of(ranks)}, tag, where);
  if (auto other = std::ranges::find_if(hashes, [&](auto hash) { return hash != hash_of(ranks); });
      other != hashes.end()) {
    const auto& names = state_->names();
    auto text = formatted("{} of group {}: {} passed another list than {}", tag, name(),
                          names.rank(static_cast<int>(other - hashes.begin())), names.rank(rank()));
    state_->abort(text);
    throw Mismatch(text);
  }
  if (std::ranges::find(ranks, rank()) == ranks.end()) return std::nullopt;
  return Group(state_->part(ranks, std::move(part)));
}

}  // namespace lockstep
