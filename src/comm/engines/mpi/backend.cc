#include "comm/engines/mpi/backend.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/engines/mpi/library.h"
#include "comm/rendezvous/exchange.h"
#include "sys/own_process.h"
#include "sys/process_info.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace lockstep::mpi {
MpiBackend::MpiBackend(ProgressThread& progress, std::shared_ptr<Member> member,
                       std::shared_ptr<Store> store)
    : Backend(member->rank(), static_cast<int>(member->world_ranks().size())),
      progress_(progress),
      member_(std::move(member)),
      store_(std::move(store)) {
  member_->join();
}

MpiBackend::~MpiBackend() { member_->leave(grace_); }

void MpiBackend::post(const Call& call) {
  const auto& tensor = call.input.defined() ? call.input : call.output;
  check(!tensor.defined() || tensor.is_cpu(),
        "{}: the engine mpi takes tensors in the CPU's memory; this one is on {}",
        name_of(call.collective), tensor.defined() ? tensor.device().str() : "");
  member_->post(call);
}

at::Tensor MpiBackend::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

std::shared_ptr<Backend> MpiBackend::subset(std::span<const int> ranks, std::string_view name) {
  std::vector<int> world_ranks;
  for (int rank : ranks) world_ranks.push_back(member_->world_ranks().at(rank));
  auto own = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto id = combine_fingerprints(member_->id(), fingerprint(name));
  auto member = std::make_shared<Member>(progress_, member_->group().part(ranks, std::string(name)),
                                         id, std::move(world_ranks), own);
  return sys::make_shared_of_process<MpiBackend>(progress_, std::move(member), store_);
}

bool has_mpi() { return !libraries().empty(); }

std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, int size,
                              Duration join_timeout) {
  auto& progress = ProgressThread::open();
  check_input(progress.size() >= size,
              "the backend mpi: rank {} of {} is one of {} processes that MPI ({}) knows of; start "
              "the program with that implementation's mpirun -n {}",
              rank, size, progress.size(), progress.library(), size);
  // What the ranks tell each other: the rank in MPI's world, the time, the process.
  auto texts = rendezvous::exchange(
      *store, {.prefix = "mpi/", .rank = rank, .size = size, .purpose = "to join over MPI"},
      formatted("{} {} {}", progress.rank(), Clock::now().time_since_epoch().count(),
                sys::process_identity()),
      join_timeout);
  std::vector<int> world_ranks;
  std::vector<std::string> processes;
  for (const auto& text : texts) {
    std::istringstream words(text);
    std::int64_t begun = 0;
    words >> world_ranks.emplace_back(-1) >> begun >> std::ws;
    std::getline(words, processes.emplace_back());
  }
  // No other world has the time and the process of rank 0.
  auto member = std::make_shared<Member>(progress, GroupNames(), fingerprint(texts.front()),
                                         std::move(world_ranks), rank);
  progress.give([&progress, member, processes] {
    for (std::size_t other = 0; other < processes.size(); ++other)
      progress.watch(member->world_ranks()[other], processes[other]);
  });
  return sys::make_shared_of_process<MpiBackend>(progress, std::move(member), std::move(store));
}

}  // namespace lockstep::mpi
