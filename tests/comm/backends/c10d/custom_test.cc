// A c10d backend that the user supplies; this one does everything through the store.
#include <lockstep/base/error.h>
#include <lockstep/comm/c10d.h>

#include "comm/backends/c10d/store_backend.h"
#include "comm/init/backends.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <lockstep/comm/group.h>
#include <lockstep/store/file_store.h>
#include <lockstep/store/memory_store.h>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <memory>
#include <string>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

// Counts the bytes that a rank sends.
class CountingBackend final : public test::StoreBackend {
 public:
  using StoreBackend::StoreBackend;

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    sent += static_cast<std::int64_t>(inputs[0].nbytes()) * (getSize() - 1);
    return StoreBackend::allgather(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_counts,
                                               std::vector<std::int64_t>& input_counts,
                                               const c10d::AllToAllOptions&) override {
    sent += static_cast<std::int64_t>(input.nbytes()) - input_counts[getRank()];
    return exchange(output, input, output_counts, input_counts);
  }

  static inline std::int64_t sent = 0;  // ranks are processes
};

TEST(CustomC10d, HalfPrecisionTravelsInSixteenBits) {
  test::TemporaryFolder folder;
  test::expect_ranks(3, [&](int rank) {
    BackendOptions options{.join_timeout = 20s,
                           .c10d = [](const auto& store, int place, int size, Duration) {
                             return c10::make_intrusive<CountingBackend>(store, place, size);
                           }};
    auto store = std::make_shared<FileStore>(folder.path());
    Group group(make_backend("counting", store, rank, 3, options), "world", 20s);
    auto tensor = at::full({30000}, rank + 1, at::kBFloat16);
    group.all_reduce(tensor).wait();
    EXPECT_EQ(tensor[29999].item<float>(), 6);
    EXPECT_EQ(CountingBackend::sent, 2 * 60000 * 2 / 3);
    CountingBackend::sent = 0;
    auto part = at::empty({10000}, at::kBFloat16);
    group.reduce_scatter(part, at::full({30000}, rank, at::kBFloat16), Op::average).wait();
    EXPECT_EQ(part[9999].item<float>(), 1);
    EXPECT_EQ(CountingBackend::sent, 60000 * 2 / 3);
  });
}

// A factory that waits for a key of a rank that is gone would else wait for c10d's five minutes.
TEST(CustomC10d, WaitsOfItsStoreEndAtTheTimeLimitForJoining) {
  BackendOptions options{.join_timeout = 200ms,
                         .c10d = [](const auto& store, int place, int size, Duration) {
                           (void)store->get("never set");
                           return c10::make_intrusive<CountingBackend>(store, place, size);
                         }};
  EXPECT_THROW((void)make_backend("waiting", std::make_shared<MemoryStore>(), 0, 1, options),
               Timeout);
}

TEST(CustomC10d, MovesAndReducesByWhatItHas) {
  test::TemporaryFolder folder;
  test::expect_ranks(3, [&](int rank) {
    BackendOptions options{.join_timeout = 20s,
                           .c10d = [](const auto& store, int place, int size, Duration) {
                             return c10::make_intrusive<test::StoreBackend>(store, place, size);
                           }};
    auto store = std::make_shared<FileStore>(folder.path());
    Group group(make_backend("by store", store, rank, 3, options), "world", 20s);
    EXPECT_EQ(group.backend(), "by store");
    auto gathered = at::empty({6});
    group.all_gather(gathered, at::full({2}, rank, at::kFloat)).wait();
    EXPECT_EQ(gathered[5].item<float>(), 2);
    auto most = at::full({4}, rank, at::kInt);
    group.all_reduce(most, Op::max).wait();
    EXPECT_EQ(most[3].item<int>(), 2);
    auto part = group.split(rank == 2 ? 1 : 0);
    auto product = at::full({2}, rank + 2.0f);
    part.all_reduce(product, Op::product).wait();
    EXPECT_EQ(product[0].item<float>(), rank == 2 ? 4 : 6);
    // An operation that the backend lacks is an error of the call, with the backend's own message.
    auto text = test::message_of<PeerLost>([&] { group.all_reduce(at::full({2}, 1.0f)).wait(); });
    test::expect_words(text, {"allreduce"});
  });
}

}  // namespace
