#include "comm/init/run_store.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/backend/one_line.h"
#include "comm/engines/c10d/store_adapter.h"
#include "comm/engines/mpi/bootstrap_store.h"
#include "comm/init/master_address.h"
#include "comm/rendezvous/served_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <string_view>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<Store> open_c10d(const rank_env::RankInfo& info, Deadline deadline) {
  const auto& at = *info.rendezvous;
  bool serves = at.kind == rank_env::RankRendezvous::Kind::rank_0 && info.rank == 0;
  const MasterAddress master(at.host, at.port, deadline);
  std::string_view listener = at.kind == rank_env::RankRendezvous::Kind::rank_0
                                  ? "rank 0, which listens there,"
                                  : "torchrun's store";
  if (serves)
    master.check_own();
  else
    master.wait_for_listener(info.rank, listener, deadline);
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serves;
  options.waitWorkers = false;
  options.multiTenant =
      true;  // for a second group of this process while the first still holds the port
  options.timeout = std::max(
      milliseconds(100), std::min<milliseconds>(std::chrono::ceil<milliseconds>(deadline.left()),
                                                std::chrono::hours(24)));
  try {
    return c10d_engine::as_store(c10::make_intrusive<c10d::TCPStore>(master.host(), options), "");
  } catch (const std::exception& error) {
    if (serves)
      throw BadInput(formatted("rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, {}: {}",
                               master.text(), first_line(error.what())));
    throw Timeout(formatted(
        "rank {} timed out connecting to MASTER_ADDR:MASTER_PORT, {}: {} did not arrive ({})",
        info.rank, master.text(), listener, first_line(error.what())));
  }
}

}  // namespace

std::shared_ptr<Store> open_run_store(const rank_env::RankInfo& info, Deadline deadline) {
  using Kind = rank_env::RankRendezvous::Kind;
  switch (info.rendezvous->kind) {
    case Kind::lockstep_store:
      return open_store(info.rendezvous->address, rank_env::read_secret(), deadline.left());
    case Kind::served_store:
      return rendezvous::open_served_store(info, deadline);
    case Kind::agent_store:
    case Kind::rank_0:
      return open_c10d(info, deadline);
    case Kind::mpi:
      return mpi::open_mpi_store(deadline);
  }
  throw BadInput("init: unknown kind of rendezvous");
}

}  // namespace lockstep
