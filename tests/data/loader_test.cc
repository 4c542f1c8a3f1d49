#include <lockstep/data/loader.h>

#include "data/refusal.h"
#include "support/data_folder.h"

#include <lockstep/comm/local.h>
#include <lockstep/data/images.h>
#include <lockstep/data/tokens.h>

#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <type_traits>

namespace lockstep::data {
namespace {

using test::refusal;
using torch::data::Example;

// Sample i is {i, i * i}, read one at a time. Some reads are slow, so that workers overtake each
// other.
struct Squares {
  std::size_t count;
  [[nodiscard]] std::size_t size() const { return count; }
  [[nodiscard]] Example<> get(std::size_t index) const {
    if (index % 5 == 0) std::this_thread::yield();
    const auto value = static_cast<std::int64_t>(index);
    return {at::scalar_tensor(value, at::kLong), at::scalar_tensor(value * value, at::kLong)};
  }
};

using Numbers = std::vector<std::int64_t>;

Numbers numbers(const at::Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<std::int64_t>();
  return {begin, begin + tensor.numel()};
}

// Returns the batches of an epoch as lists of sample numbers.
template <class L>
std::vector<Numbers> batches_of(L& loader, std::int64_t epoch) {
  std::vector<Numbers> all;
  for (auto& batch : loader.epoch(epoch)) all.push_back(numbers(batch.data));
  return all;
}

TEST(Loader, ReadsTheSamplersOrder) {
  auto one = loader(Squares{23}, {.batch_size = 4, .seed = 6});
  EXPECT_EQ(one.batches(), 6);
  EXPECT_EQ(one.samples(), 23);
  for (std::int64_t epoch : {0, 1, 4}) {
    Numbers all;
    for (auto& batch : one.epoch(epoch)) {
      EXPECT_TRUE(batch.target.equal(batch.data * batch.data));
      const Numbers some = numbers(batch.data);
      all.insert(all.end(), some.begin(), some.end());
    }
    const auto order = Sampler(23, {.seed = 6}).order(epoch);
    EXPECT_EQ(all, Numbers(order.begin(), order.end()));
  }
}

TEST(Loader, BatchesAreTheSameForAnyNumberOfWorkers) {
  auto without = loader(Squares{203}, {.batch_size = 3, .workers = 0});
  for (int workers : {1, 2, 3, 5}) {
    for (int prefetch : {1, 2, 9}) {
      auto with = loader(Squares{203}, {.batch_size = 3, .workers = workers, .prefetch = prefetch});
      for (std::int64_t epoch : {0, 1})
        EXPECT_EQ(batches_of(with, epoch), batches_of(without, epoch));
    }
  }
}

TEST(Loader, RanksReadEverySampleOnce) {
  for (int size = 1; size <= 5; ++size) {
    const auto groups = local_groups(size);
    std::vector<int> seen(31);
    for (const Group& group : groups) {
      auto own = loader(Squares{31}, {.batch_size = 7, .group = group, .uneven = true});
      for (auto& batch : own.epoch(2)) {
        for (std::int64_t number : numbers(batch.data)) ++seen[static_cast<std::size_t>(number)];
      }
    }
    EXPECT_EQ(seen, std::vector<int>(31, 1)) << size;
  }
}

TEST(Loader, ResumesInTheMiddleOfAnEpoch) {
  const LoaderOptions options{.batch_size = 4, .seed = 8, .workers = 2, .prefetch = 5};
  auto whole = loader(Squares{50}, options);
  const auto epoch2 = batches_of(whole, 2), epoch3 = batches_of(whole, 3);
  for (std::size_t stop = 1; stop <= epoch2.size(); ++stop) {
    auto first = loader(Squares{50}, options);
    std::string saved;
    std::size_t handed_out = 0;
    for ([[maybe_unused]] auto& batch : first.epoch(2)) {
      if (++handed_out == stop) {
        saved = first.state().to_text();  // as a program does after its step
        break;
      }
    }
    auto second = loader(Squares{50}, options);
    second.resume(LoaderState::from_text(saved));
    EXPECT_EQ(second.state(), first.state());
    EXPECT_EQ(
        batches_of(second, 2),
        std::vector<Numbers>(epoch2.begin() + static_cast<std::ptrdiff_t>(stop), epoch2.end()));
    EXPECT_EQ(batches_of(second, 3), epoch3);
    EXPECT_EQ(batches_of(second, 2), epoch2);
  }
}

TEST(Loader, ResumesOnAnotherNumberOfRanks) {
  auto alone = loader(Squares{48}, {.batch_size = 12});
  const auto all = batches_of(alone, 0);
  LoaderState state = alone.state();
  state.batches = 2;
  const auto groups = local_groups(3);
  std::vector<Numbers> joined(2, Numbers(12));
  for (const Group& group : groups) {
    auto own = loader(Squares{48}, {.batch_size = 12, .group = group});
    own.resume(state);
    const auto rest = batches_of(own, 0);
    ASSERT_EQ(rest.size(), 2u);
    for (std::size_t batch = 0; batch < 2; ++batch) {
      for (std::size_t i = 0; i < 4; ++i)
        joined[batch][i * 3 + static_cast<std::size_t>(group.rank())] = rest[batch][i];
    }
  }
  EXPECT_EQ(joined, std::vector<Numbers>(all.begin() + 2, all.end()));
}

TEST(Loader, RefusesToResumeAnotherOrder) {
  auto one = loader(Squares{50}, {.batch_size = 4});
  const LoaderState before = one.state();
  LoaderState other = before;
  other.batches = 3;
  other.seed = 99;
  EXPECT_EQ(refusal([&] { one.resume(other); }), "resuming a loader: expected seed 0, found 99");
  EXPECT_EQ(one.state(), before);
}

TEST(Loader, MayBeLeftEarly) {
  auto one = loader(Squares{500}, {.batch_size = 2, .workers = 3, .prefetch = 8});
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
    std::int64_t left = epoch % 7;
    for ([[maybe_unused]] auto& batch : one.epoch(epoch)) {
      if (left-- == 0) break;
    }
  }
  EXPECT_EQ(one.state().epoch, 39);
  EXPECT_EQ(one.state().batches, 39 % 7 + 1);
}

TEST(Loader, AnEpochMayOutliveItsLoader) {
  auto one = std::make_unique<Loader<Example<>>>(loader(Squares{10}, {.batch_size = 5}));
  auto epoch = one->epoch(0);
  one.reset();
  std::size_t count = 0;
  for ([[maybe_unused]] auto& batch : epoch) ++count;
  EXPECT_EQ(count, 2u);
}

static_assert(!std::is_copy_constructible_v<Loader<Example<>>>, "a copy would share the position");
static_assert(std::is_move_constructible_v<Loader<Example<>>>);

TEST(Loader, HoldsNoGroup) {
  auto groups = local_groups(2, std::chrono::seconds(20));
  auto own = loader(Squares{10}, {.batch_size = 4, .group = groups[1]});
  groups.pop_back();
  EXPECT_THROW(groups[0].barrier().wait(), PeerLost);
  EXPECT_EQ(batches_of(own, 0).size(), 3u);
}

TEST(Loader, EachWorkerReadsABatchAhead) {
  constexpr int workers = 4;
  struct Meeting : Squares {
    std::shared_ptr<std::atomic<int>> readers = std::make_shared<std::atomic<int>>(0);
    [[nodiscard]] Example<> get(std::size_t index) const {
      const auto limit = Deadline::after(std::chrono::seconds(20));
      for (++*readers; *readers < workers && !limit.passed();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Squares::get(index);
    }
  };
  Meeting meeting{{workers}};
  auto one = loader(meeting, {.batch_size = 1, .workers = workers, .prefetch = 1});
  auto epoch = one.epoch(0);
  const auto limit = Deadline::after(std::chrono::seconds(20));
  while (*meeting.readers < workers && !limit.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(*meeting.readers, workers) << "before the program has taken a batch";
}

TEST(Loader, OneEpochAtATime) {
  auto one = loader(Squares{10}, {.batch_size = 5});
  {
    auto epoch = one.epoch(0);
    EXPECT_EQ(
        refusal<InvalidArgument>([&] { (void)one.epoch(1); }),
        "Loader::epoch: expected the range of the epoch before to be gone, found it still in use");
  }
  EXPECT_NO_THROW((void)one.epoch(1));
}

// A dataset that throws for one sample.
struct Broken : Squares {
  std::size_t bad;
  [[nodiscard]] Example<> get(std::size_t index) const {
    if (index == bad) throw BadInput("sample " + std::to_string(index) + " is broken");
    return Squares::get(index);
  }
};

TEST(Loader, AnErrorInAWorkerReachesTheProgram) {
  for (int workers : {0, 1, 3}) {
    auto one = loader(Broken{{40}, 22},
                      {.batch_size = 4, .workers = workers, .prefetch = 4, .shuffle = false});
    std::int64_t handed_out = 0;
    EXPECT_EQ(refusal([&] {
                for ([[maybe_unused]] auto& batch : one.epoch(0)) ++handed_out;
              }),
              "sample 22 is broken");
    EXPECT_EQ(handed_out, 5);
    EXPECT_EQ(one.state().batches, 5);
  }
}

TEST(Loader, TakesDatasetsOfLibTorch) {
  const at::Tensor data = at::arange(24).view({12, 2}), target = at::arange(12);
  const LoaderOptions options{.batch_size = 5, .workers = 2, .shuffle = false};
  auto plain = loader(torch::data::datasets::TensorDataset(data), options);
  for (auto& batch : plain.epoch(0)) {
    static_assert(std::is_same_v<decltype(batch), torch::data::TensorExample&>);
    EXPECT_TRUE(batch.data.equal(
        data.narrow(0, batch.data[0][0].item<std::int64_t>() / 2, batch.data.size(0))));
  }
  struct Both : torch::data::datasets::Dataset<Both> {
    Example<> get(std::size_t index) override {
      const auto i = static_cast<std::int64_t>(index);
      return {at::full({3}, i), at::scalar_tensor(i, at::kLong)};
    }
    [[nodiscard]] std::optional<std::size_t> size() const override { return 12; }
  };
  auto both = loader(Both(), options);
  auto mapped = loader(Both().map(torch::data::transforms::Stack<>()), options);
  auto a = both.epoch(0);
  auto b = mapped.epoch(0);
  auto left = a.begin();
  auto right = b.begin();
  for (; left != a.end(); ++left, ++right) {
    EXPECT_TRUE((*left).data.equal((*right).data) && (*left).target.equal((*right).target));
  }
  EXPECT_TRUE(right == b.end());
}

TEST(Loader, TakesSharedAndMoveOnlyDatasets) {
  struct Unique : Squares {
    explicit Unique(std::size_t count) : Squares{count} {}
    std::unique_ptr<int> resource;
  };
  auto moved = loader(Unique(7), {.batch_size = 7, .shuffle = false});
  EXPECT_EQ(batches_of(moved, 0), (std::vector<Numbers>{{0, 1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(
      refusal<InvalidArgument>([] { (void)loader(Unique(7), {.workers = 2}); }),
      "loader: expected a dataset that can be copied (or a shared_ptr to one) for several workers");
  auto shared =
      loader(std::make_shared<Unique>(7), {.batch_size = 4, .workers = 2, .shuffle = false});
  EXPECT_EQ(batches_of(shared, 0), (std::vector<Numbers>{{0, 1, 2, 3}, {4, 5, 6}}));
}

TEST(Loader, RefusesADatasetWithoutSize) {
  struct Endless : Squares {
    [[nodiscard]] static std::optional<std::size_t> size() { return std::nullopt; }
  };
  EXPECT_EQ(refusal<InvalidArgument>([] { (void)loader(Endless{}, {}); }),
            "loader: the dataset must know its size: its size() returned no value");
}

TEST(Loader, CoversTheValidationPartOnceOverRanks) {
  const at::Tensor tokens = at::arange(100, at::kInt);
  for (int size : {1, 2, 3}) {
    const auto groups = local_groups(size);
    std::int64_t targets = 0, sum = 0;
    for (const Group& group : groups) {
      auto own = loader(SequentialBlocks(tokens, 7),
                        {.batch_size = 6, .group = group, .shuffle = false, .uneven = true});
      for (auto& batch : own.epoch(0)) {
        targets += count_targets(batch.target);
        sum += batch.target.masked_fill(batch.target < 0, 0).sum().item<std::int64_t>();
      }
    }
    EXPECT_EQ(targets, 99);
    EXPECT_EQ(sum, 99 * 100 / 2);
  }
}

TEST(Loader, MnistInOneEpoch) {
  const auto folder = test::data_file("mnist");
  if (!folder) GTEST_SKIP() << test::no_data("mnist");
  auto one = loader(mnist(*folder, {.part = MnistPart::test}), {.batch_size = 64, .workers = 2});
  at::Tensor per_class = at::zeros({10}, at::kLong);
  double sum = 0;
  for (auto& batch : one.epoch(0)) {
    per_class += at::bincount(batch.target, {}, 10);
    sum += batch.data.sum(at::kDouble).item<double>();
  }
  EXPECT_TRUE(per_class.equal(
      at::tensor({980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}, at::kLong)));
  EXPECT_NEAR(sum / (10000 * 784), 0.006,
              0.001);  // mean of the test images; that of the training images is 0
}

}  // namespace
}  // namespace lockstep::data
