// Another thread aborts a handle during training. The thread that watches a run calls abort() when
// a rank is lost, and the training thread then leaves its loop with that error.
#include "parallel/handle_state.h"

#include "parallel/pipeline/support.h"
#include "parallel/support.h"

#include <lockstep/models/moe.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>

#include <atomic>
#include <map>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

using Make = std::function<Handle(const Group& ranks)>;

std::shared_ptr<torch::nn::SequentialImpl> layers() {
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)).ptr();
}

// The strategies on four ranks.
std::map<std::string, Make> makers() {
  return {
      {"ddp",
       [](const Group& ranks) -> Handle { return DistributedDataParallel(*layers(), ranks); }},
      {"tensors_and_copies",
       [](const Group& ranks) -> Handle {
         return parallelize(layers(), Mesh(ranks, {{"dp", 2}, {"tp", 2}}),
                            {.tensor = {{"0", Colwise()}}});
       }},
      {"sharded_stages",
       [](const Group& ranks) -> Handle {
         return parallelize(blocks(4), Mesh(ranks, {{"fsdp", 2}, {"pp", 2}}), {.micro_batches = 2});
       }},
      {"experts", [](const Group& ranks) -> Handle {
         models::MoeOptions options;
         options.gpt = {
             .layers = 1, .heads = 1, .hidden_size = 4, .context_length = 4, .vocabulary = 7};
         return parallelize(models::Moe(options), Mesh(ranks, {{"dp", 2}, {"ep", 2}}));
       }}};
}

class Abort : public testing::TestWithParam<std::string> {};

TEST_P(Abort, ByAnotherThreadWhileTheHandleGoes) {
  const Make make = makers().at(GetParam());
  run_as_threads(4, [&](Group group) {
    for (int turn = 0; turn < 25; ++turn) {
      Group own = group.split(0);
      Handle handle = make(own);
      const auto abort = HandleState::abort_of(handle);
      group.barrier().wait();
      std::atomic<bool> begins = false;
      std::thread watch([&] {
        begins = true;
        for (int again = 0; again < 50; ++again) abort("the test ends it");
      });
      while (!begins) std::this_thread::yield();
      handle = {};
      watch.join();
      abort("after the end");
      EXPECT_THROW(own.barrier().wait(), Error);
      group.barrier().wait();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Abort,
                         testing::Values("ddp", "tensors_and_copies", "sharded_stages", "experts"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
