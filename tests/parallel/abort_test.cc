// A handle that is ended by another thread while it goes: the thread that watches a run calls
// abort() when a rank is lost, and the training thread leaves its loop for the same reason.
#include "parallel/handle_state.h"

#include "parallel/pipeline/support.h"
#include "parallel/support.h"

#include <lockstep/models/moe.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <atomic>
#include <map>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

using Make = std::function<Handle(const Mesh& mesh)>;

Handle averaged(torch::nn::Module& part, const Mesh& mesh) {
  return DistributedDataParallel(part, mesh);
}

std::shared_ptr<torch::nn::SequentialImpl> layers() {
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)).ptr();
}

std::map<std::string, Make> makers() {
  return {{"ddp", [](const Mesh& mesh) { return averaged(*layers(), mesh); }},
          {"parallelize",
           [](const Mesh& mesh) -> Handle {
             return parallelize_tensors(
                 layers(), mesh["b"], {{"0", Colwise()}},
                 {.strategy = [mesh](auto& part) { return averaged(part, mesh.sub_mesh({"a"})); },
                  .mesh = mesh});
           }},
          {"pipeline",
           [](const Mesh& mesh) -> Handle {
             const auto stages = split(blocks(4), even_points(4, 2));
             return Pipeline(
                 stages, plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 2}), mesh["b"],
                 squared_error,
                 {.strategy = [mesh](auto& part) -> Handle { return fully_shard(part, mesh["a"]); },
                  .all_ranks = mesh.group()});
           }},
          {"expert_parallel", [](const Mesh& mesh) -> Handle {
             const Mesh own(mesh.group(), {{"dp", 1}, {"ep", 2}});
             models::MoeOptions options;
             options.gpt = {.layers = 1, .heads = 1, .width = 4, .block = 4, .vocabulary = 7};
             return expert_parallel(models::Moe(options).ptr(), own, {.strategy = averaged});
           }}};
}

class Abort : public testing::TestWithParam<std::string> {};

TEST_P(Abort, ByAnotherThreadWhileTheHandleGoes) {
  const Make make = makers().at(GetParam());
  run_as_threads(2, [&](Group group) {
    for (int turn = 0; turn < 25; ++turn) {
      Group own = group.split(0);
      const bool is_along_a = GetParam() == "ddp";
      Handle handle = make(Mesh(own, {{"a", is_along_a ? 2 : 1}, {"b", is_along_a ? 1 : 2}}));
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
                         testing::Values("ddp", "parallelize", "pipeline", "expert_parallel"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
