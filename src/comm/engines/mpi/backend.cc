#include "comm/engines/mpi/backend.h"

#include <lockstep/base/check.h>
#include <lockstep/base/error.h>
#include <lockstep/base/fingerprint.h>
#include <lockstep/base/format.h>

#include "comm/engines/mpi/library.h"
#include "comm/rendezvous/exchange.h"
#include "sys/own_process.h"
#include "sys/process_identity.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include <unistd.h>

namespace lockstep::mpi {
namespace {

// What a rank tells the others; a line of words.
struct Hello {
  int place = -1;  // rank in MPI's world
  int process = 0;
  std::int64_t begun = 0;  // with the process, what no other world has
  std::string space;

  [[nodiscard]] std::string text() const {
    return formatted("{} {} {} {}", place, process, begun, space);
  }
  static Hello read(const std::string& text) {
    Hello hello;
    std::istringstream words(text);
    words >> hello.place >> hello.process >> hello.begun;
    std::getline(words >> std::ws, hello.space);
    return hello;
  }
};

}  // namespace

MpiBackend::MpiBackend(PostOffice& office, std::shared_ptr<Member> member,
                       std::shared_ptr<Store> store)
    : Backend(member->rank(), static_cast<int>(member->places().size())),
      office_(office),
      member_(std::move(member)),
      store_(std::move(store)) {
  member_->join();
}

MpiBackend::~MpiBackend() { member_->leave(grace_); }

std::uint64_t MpiBackend::post(const Call& call) {
  const auto& tensor = call.input.defined() ? call.input : call.output;
  check(!tensor.defined() || tensor.is_cpu(),
        "{}: the engine mpi takes tensors in the CPU's memory; this one is on {}",
        name_of(call.collective), tensor.defined() ? tensor.device().str() : "");
  return member_->post(call);
}

at::Tensor MpiBackend::empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

std::shared_ptr<Backend> MpiBackend::subset(std::span<const int> ranks, std::string_view name) {
  std::vector<int> places;
  for (int rank : ranks) places.push_back(member_->places().at(rank));
  auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto id = combine_fingerprints(member_->id(), fingerprint(name));
  auto member = std::make_shared<Member>(office_, std::string(name), id, std::move(places), place);
  return sys::make_shared_of_process<MpiBackend>(office_, std::move(member), store_);
}

bool has_mpi() { return !libraries().empty(); }

std::shared_ptr<Backend> make_mpi_backend(std::shared_ptr<Store> store, int rank, int size,
                                          Duration join_timeout) {
  auto& office = PostOffice::open();
  check_input(office.size() >= size,
              "the backend mpi: rank {} of {} is one of {} processes that MPI ({}) knows of; start "
              "the program with that implementation's mpirun -n {}",
              rank, size, office.size(), office.library(), size);
  Hello mine{.place = office.rank(),
             .process = ::getpid(),
             .begun = Clock::now().time_since_epoch().count(),
             .space = sys::process_space()};
  auto texts = rendezvous::exchange(
      *store, {.prefix = "mpi/", .rank = rank, .size = size, .purpose = "to join over MPI"},
      mine.text(), join_timeout);
  std::vector<Hello> all;
  for (const auto& text : texts) all.push_back(Hello::read(text));
  std::vector<int> places;
  for (const auto& hello : all) places.push_back(hello.place);
  auto id = fingerprint_of(all.front().place, all.front().process, all.front().begun);
  auto member = std::make_shared<Member>(office, "world", id, std::move(places), rank);
  office.give([&office, all, space = mine.space] {
    for (const auto& hello : all) {
      if (hello.space == space) office.watch(hello.place, hello.process);
    }
  });
  return sys::make_shared_of_process<MpiBackend>(office, std::move(member), std::move(store));
}

}  // namespace lockstep::mpi
