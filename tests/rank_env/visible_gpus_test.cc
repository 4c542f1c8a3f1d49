#include "rank_env/visible_gpus.h"

#include <lockstep/base/error.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::rank_env {
namespace {

using Names = std::vector<std::string>;

TEST(VisibleGpus, AListIsReadEntryByEntry) {
  EXPECT_EQ(listed_gpus("2,3"), (Names{"2", "3"}));
  EXPECT_EQ(listed_gpus(" GPU-8932f937 , 1"), (Names{"GPU-8932f937", "1"}));
  EXPECT_EQ(listed_gpus(""), Names{});
}

TEST(VisibleGpus, EachRankGetsItsPartOfTheListThatIsSet) {
  EXPECT_EQ(gpus_of_rank(0, 2, 2, "4,5,6,7"), "4,5");
  EXPECT_EQ(gpus_of_rank(1, 2, 2, "4,5,6,7"), "6,7");
  EXPECT_EQ(gpus_of_rank(1, 2, 1, "GPU-a,GPU-b,GPU-c"), "GPU-b");
}

TEST(VisibleGpus, WithoutAListTheGpusOfTheHostAreNumbered) {
  EXPECT_EQ(gpus_of_rank(0, 8, 1, std::nullopt), "0");
  EXPECT_EQ(gpus_of_rank(3, 4, 2, std::nullopt), "6,7");
}

TEST(VisibleGpus, AListThatIsTooShortIsAnError) {
  for (const char* visible : {"0,1,2", ""})
    test::expect_words(
        test::message_of<BadInput>([&] { static_cast<void>(gpus_of_rank(0, 2, 2, visible)); }),
        {"--gpus-per-rank 2", "--ranks 2: expected CUDA_VISIBLE_DEVICES to name 4 GPUs",
         ", found "});
}

}  // namespace
}  // namespace lockstep::rank_env
