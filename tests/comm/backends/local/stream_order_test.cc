// Ranks that are threads, with tensors on a test device, which executes nothing before a rank waits
// for it.
#include <lockstep/comm/local.h>

#include "support/torch/late_device.h"

#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>

using namespace lockstep;

namespace {

TEST(LocalStreamOrder, ReadsWhatEveryRanksStreamWasGivenBeforeItsPost) {
  run_as_threads(3, [](Group group) {
    const c10::StreamGuard on(test::new_late_stream());
    auto mine = test::on_late_device(at::zeros({2}));
    auto all = test::on_late_device(at::zeros({6}));
    test::fill_later(mine, group.rank() + 1.0f);
    group.all_gather(all, mine).wait();
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(test::late_value(all, 2 * rank + 1), static_cast<float>(rank) + 1);
  });
}

TEST(LocalStreamOrder, OutputsAreThereForEveryStreamAfterTheWait) {
  run_as_threads(2, [](Group group) {
    auto tensor = test::on_late_device(at::full({2}, group.rank() + 1.0f));
    auto work = group.rank() == 0 ? group.send(tensor, 1) : group.recv(tensor, 0);
    const c10::StreamGuard on(test::new_late_stream());
    work.wait();
    EXPECT_EQ(test::late_value(tensor, 1), 1);
  });
}

// Work that was issued on a rank's memory before its post comes before the operation's writes to
// that memory.
TEST(LocalStreamOrder, AnOutputComesAfterWhatItsMemoryWasGivenBeforeThePost) {
  run_as_threads(2, [](Group group) {
    const auto other = test::new_late_stream();
    auto tensor = test::on_late_device(at::full({2}, group.rank() + 1.0f));
    Work work;
    {
      const c10::StreamGuard on(other);
      if (group.rank() == 1) test::fill_later(tensor, -1);
      work = group.rank() == 0 ? group.send(tensor, 1) : group.recv(tensor, 0);
    }
    work.wait();
    other.synchronize();
    EXPECT_EQ(test::late_value(tensor, 0), 1);
  });
}

}  // namespace
