// Several ranks that share one GPU; their tensors are staged through the host.
#include "device/calls.h"
#include "device/devices.h"
#include "support/torch/values.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

using namespace lockstep;

namespace {

c10::Stream stream_of_the_pool() {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(test::first_device);
}

// Gives the current stream some milliseconds of work.
void keep_busy() {
  auto matrix = at::rand({2048, 2048}, test::first_device);
  for (int i = 0; i < 20; ++i) matrix = matrix.matmul(matrix).clamp(-1, 1);
}

class SharedDevice : public test::OneDevice {};

TEST_P(SharedDevice, GivesTheBitsThatTensorsOfTheHostGet) {
  run([](Group group) {
    auto calls = test::reductions();
    for (auto& call : test::moves()) calls.push_back(std::move(call));
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
      const auto host = test::values(group.rank(), 12 * group.size(), dtype);
      const auto device = host.to(test::first_device);
      for (const auto& call : calls) {
        const auto expected = call.run(group, host);
        const auto found = call.run(group, device);
        ASSERT_EQ(expected.defined(), found.defined()) << call.name;
        if (!found.defined()) continue;
        EXPECT_EQ(found.device(), test::first_device) << call.name;
        EXPECT_TRUE(test::same_bits(found.cpu(), expected)) << call.name << " of " << dtype;
      }
    }
  });
}

TEST_P(SharedDevice, ReadsWhatTheStreamWasGivenBeforeThePost) {
  run([](Group group) {
    const c10::StreamGuard on(stream_of_the_pool());
    auto tensor = at::zeros({1 << 20}, test::first_device);
    keep_busy();
    tensor.fill_(group.rank() + 1.0f);
    group.all_reduce(tensor).wait();
    const auto ranks = static_cast<float>(group.size());
    EXPECT_EQ(tensor.min().item<float>(), ranks * (ranks + 1) / 2);
    EXPECT_EQ(tensor.max().item<float>(), ranks * (ranks + 1) / 2);
  });
}

// The stream that waits differs from the stream on which the memory was written before the post.
TEST_P(SharedDevice, AnOutputComesAfterWhatItsMemoryWasGivenBeforeThePost) {
  run([](Group group) {
    auto tensor = at::full({1 << 20}, group.rank() + 1.0f, test::first_device);
    if (group.rank() > 1) return;
    if (group.rank() == 0) return group.send(tensor, 1).wait();
    std::optional<Work> work;
    {
      const c10::StreamGuard on(stream_of_the_pool());
      keep_busy();
      tensor.fill_(-1);
      work = group.recv(tensor, 0);
    }
    work->wait();
    EXPECT_EQ(tensor.min().item<float>(), 1);
    EXPECT_EQ(tensor.max().item<float>(), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Staged, SharedDevice, test::sharing_ranks(), test::name_of_sharing);

}  // namespace
