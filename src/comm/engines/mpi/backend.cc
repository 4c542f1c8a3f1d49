#include "comm/engines/mpi/backend.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/backend/blocking_backend.h"
#include "comm/engines/mpi/library.h"
#include "comm/engines/mpi/member.h"
#include "comm/rendezvous/exchange.h"
#include "sys/own_process.h"
#include "sys/process_info.h"

#include <ATen/ops/empty.h>

#include <sstream>
#include <utility>

namespace lockstep::mpi {
namespace {

class MpiEngine final : public BlockingEngine {
 public:
  MpiEngine(ProgressThread& progress, std::shared_ptr<Member> member)
      : progress_(progress), member_(std::move(member)) {
    member_->join();
  }
  ~MpiEngine() override { member_->leave(); }

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  void run(const PostedCall& call) override { member_->run(call); }
  void close(std::string_view reason) noexcept override { member_->close(reason); }
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    return at::empty(sizes, options);
  }
  [[nodiscard]] std::shared_ptr<BlockingEngine> subset(std::span<const int> ranks,
                                                       const std::string& name, int rank,
                                                       Duration) override {
    std::vector<int> world_ranks;
    for (int member : ranks) world_ranks.push_back(member_->world_ranks().at(member));
    auto id = combine_fingerprints(member_->id(), fingerprint(name));
    return std::make_shared<MpiEngine>(
        progress_, std::make_shared<Member>(progress_, id, std::move(world_ranks), rank));
  }

 private:
  ProgressThread& progress_;
  std::shared_ptr<Member> member_;
};

}  // namespace

bool has_mpi() { return !libraries().empty(); }

std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, int size,
                              Duration join_timeout) {
  auto& progress = ProgressThread::open();
  check_input(progress.size() >= size,
              "the backend mpi: rank {} of {} is one of {} processes that MPI ({}) knows of; start "
              "the program with that implementation's mpirun -n {}",
              rank, size, progress.size(), progress.library(), size);
  // The ranks exchange their rank in MPI's world, the time, and the identity of their process.
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
  progress.give([&progress, world_ranks, processes] {
    for (std::size_t other = 0; other < processes.size(); ++other)
      progress.watch(world_ranks[other], processes[other]);
  });
  // No other world has the time and the process of rank 0.
  auto member =
      std::make_shared<Member>(progress, fingerprint(texts.front()), std::move(world_ranks), rank);
  return sys::make_shared_of_process<BlockingBackend>(
      std::make_shared<MpiEngine>(progress, std::move(member)), std::move(store), GroupNames(),
      rank, size, join_timeout);
}

}  // namespace lockstep::mpi
