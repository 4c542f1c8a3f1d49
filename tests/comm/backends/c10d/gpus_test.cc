#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

using namespace lockstep;

namespace {

std::string refusal_of(const std::vector<std::string>& gpus) {
  try {
    c10d_backend::check_gpus(gpus);
  } catch (const BadInput& error) {
    return error.what();
  }
  return {};
}

TEST(Gpus, OneForEachRank) { EXPECT_EQ(refusal_of({"GPU-1", "GPU-2", "GPU-3"}), ""); }

TEST(Gpus, ARankWithoutOneIsNamed) {
  EXPECT_EQ(refusal_of({"GPU-1", "", "GPU-1"}),
            "the backend nccl: expected a GPU in every rank's process, found none in rank 1 of 3: "
            "is there an NVIDIA driver, and what does CUDA_VISIBLE_DEVICES say?");
}

TEST(Gpus, RanksThatShareOneAreNamed) {
  EXPECT_EQ(refusal_of({"GPU-1", "GPU-2", "GPU-2"}),
            "the backend nccl: expected a GPU for each rank, found ranks 1 and 2 on one (GPU-2); "
            "shm and gloo let ranks share a GPU");
}

}  // namespace
