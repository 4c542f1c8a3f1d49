#include "comm/backend/recorded_backend.h"

#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/environment.h>

#include "comm/diagnose/failure.h"
#include "sys/own_process.h"

#include <exception>
#include <numeric>
#include <utility>

namespace lockstep::flight {
namespace {

// Whether the group died of it; a call that was refused leaves the group alive.
bool is_refusal(const std::exception& error) {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
         dynamic_cast<const BadInput*>(&error) != nullptr;
}

}  // namespace

RecordedBackend::RecordedBackend(std::shared_ptr<Backend> backend,
                                 std::shared_ptr<Recorder> recorder, std::string group,
                                 std::vector<int> members)
    : Backend(backend->rank(), backend->size()),
      backend_(std::move(backend)),
      recorder_(std::move(recorder)),
      members_(std::move(members)),
      group_(recorder_->add_group(std::move(group), members_)),
      counts_(1 + 2 * members_.size()) {}

RecordedBackend::~RecordedBackend() {
  if (grace_.is_by_exception())
    recorder_->note_failure(group_, "an exception ended the rank's part in the group");
  recorder_->end_group(group_);
}

std::uint64_t& RecordedBackend::count_of(const Call& call) {
  if (call.collective == Collective::send) return counts_.at(1 + call.root);
  if (call.collective == Collective::recv) return counts_.at(1 + size() + call.root);
  return counts_.front();
}

std::uint64_t RecordedBackend::post(const Call& call) {
  auto& count = count_of(call);
  const auto number = recorder_->note_post(group_, call, count + 1);
  try {
    const auto ticket = backend_->post(call);
    ++count;
    recorder_->note_posted(number, ticket);
    return ticket;
  } catch (const std::exception& error) {
    recorder_->note_end(number, Progress::refused);
    // As those say it who waited: a failure is one sentence.
    if (!is_refusal(error)) recorder_->note_failure(group_, cause_in(error.what()));
    throw;
  }
}

void RecordedBackend::wait(std::uint64_t ticket) {
  const auto number = recorder_->find(group_, ticket);
  recorder_->note_wait(number);
  try {
    backend_->wait(ticket);
    recorder_->note_end(number, Progress::done);
  } catch (const std::exception& error) {
    recorder_->note_end(number, Progress::failed);
    recorder_->note_failure(group_, error.what());
    throw;
  }
}

std::shared_ptr<Backend> RecordedBackend::subset(std::span<const int> ranks,
                                                 std::string_view name) {
  std::vector<int> members;
  for (int rank : ranks) members.push_back(members_.at(rank));
  return sys::make_shared_of_process<RecordedBackend>(backend_->subset(ranks, name), recorder_,
                                                      std::string(name), std::move(members));
}

at::Tensor RecordedBackend::empty_node_shared(at::IntArrayRef sizes,
                                              const at::TensorOptions& options, Duration timeout,
                                              std::source_location where) {
  try {
    return backend_->empty_node_shared(sizes, options, timeout, where);
  } catch (const std::exception& error) {
    if (!is_refusal(error)) recorder_->note_failure(group_, error.what());
    throw;
  }
}

std::shared_ptr<Backend> recorded(std::shared_ptr<Backend> world) {
  std::vector<int> members(world->size());
  std::iota(members.begin(), members.end(), 0);
  auto recorder = std::make_shared<Recorder>(
      Header{.rank = world->rank(),
             .size = world->size(),
             .engine = std::string(world->name()),
             .folder = environment::text(launch::variable::flight_folder).value_or("")});
  return sys::make_shared_of_process<RecordedBackend>(std::move(world), std::move(recorder),
                                                      "world", std::move(members));
}

}  // namespace lockstep::flight
