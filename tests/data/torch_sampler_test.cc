#include <lockstep/data/torch_sampler.h>

#include "data/refusal.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/serialize.h>

#include <sstream>

namespace lockstep::data {
namespace {

using Indices = std::vector<std::size_t>;

constexpr SamplerOptions second_of_two{.rank = 1, .world = 2, .seed = 3};

// Returns the samples that one pass over a loader reads.
template <class Loader>
Indices one_pass(Loader& loader) {
  Indices seen;
  for (const auto& batch : *loader) {
    for (const auto& example : batch) seen.push_back(example.data.template item<std::int64_t>());
  }
  return seen;
}

std::string saved(const TorchSampler& sampler) {
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void load(TorchSampler& sampler, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  sampler.load(archive);
}

TEST(TorchSampler, EachPassOfADataLoaderIsAnEpoch) {
  const Sampler order(21, second_of_two);
  for (std::size_t workers : {0, 2}) {
    auto loader = torch::data::make_data_loader(
        torch::data::datasets::TensorDataset(at::arange(21)), TorchSampler(order),
        torch::data::DataLoaderOptions(4).workers(workers));
    for (std::int64_t epoch = 0; epoch < 3; ++epoch)
      EXPECT_EQ(one_pass(loader), order.order(epoch)) << epoch;
  }
}

TEST(TorchSampler, SetEpochThroughAnyCopy) {
  TorchSampler sampler{Sampler(21, second_of_two)};
  auto loader = torch::data::make_data_loader(torch::data::datasets::TensorDataset(at::arange(21)),
                                              sampler, 4);
  sampler.set_epoch(7);
  EXPECT_EQ(one_pass(loader), Sampler(21, second_of_two).order(7));
  EXPECT_EQ(sampler.epoch(), 7);
  EXPECT_EQ(sampler.index(), 11u);
  EXPECT_EQ(one_pass(loader), Sampler(21, second_of_two).order(8));
}

TEST(TorchSampler, GoesOnWhereItWasSaved) {
  TorchSampler first{Sampler(21, second_of_two)};
  first.set_epoch(2);
  first.reset();
  (void)first.next(4);
  (void)first.next(4);
  const std::string bytes = saved(first);

  TorchSampler second{Sampler(21, second_of_two)};
  load(second, bytes);
  auto loader = torch::data::make_data_loader(torch::data::datasets::TensorDataset(at::arange(21)),
                                              second, 4);
  const Indices all = Sampler(21, second_of_two).order(2);
  EXPECT_EQ(one_pass(loader), Indices(all.begin() + 8, all.end()));
  EXPECT_EQ(one_pass(loader), Sampler(21, second_of_two).order(3));
}

TEST(TorchSampler, AfterAWholePassALoadGoesOnWithTheNextEpoch) {
  const Sampler order(21, second_of_two);
  const auto loader_of = [](const TorchSampler& sampler) {
    return torch::data::make_data_loader(torch::data::datasets::TensorDataset(at::arange(21)),
                                         sampler, 4);
  };
  TorchSampler first{order};
  auto loader = loader_of(first);
  EXPECT_EQ(one_pass(loader), order.order(0));

  TorchSampler second{order};
  load(second, saved(first));
  EXPECT_EQ(second.epoch(), 1);
  EXPECT_EQ(second.index(), 0u);
  auto resumed = loader_of(second);
  for (std::int64_t epoch : {1, 2}) {
    const Indices expected = order.order(epoch);
    EXPECT_EQ(one_pass(loader), expected) << epoch;
    EXPECT_EQ(one_pass(resumed), expected) << epoch;
  }
}

TEST(TorchSampler, NextEndsWithTheEpoch) {
  TorchSampler sampler{Sampler(5, {.shuffle = false})};
  EXPECT_EQ(sampler.next(3), (Indices{0, 1, 2}));
  EXPECT_EQ(sampler.next(3), (Indices{3, 4}));
  EXPECT_EQ(sampler.next(3), std::nullopt);
  EXPECT_EQ(sampler.next(3), std::nullopt);
}

TEST(TorchSampler, ResetTakesANewSize) {
  TorchSampler sampler{Sampler(5, {.shuffle = false})};
  sampler.reset(3);
  EXPECT_EQ(sampler.next(10), (Indices{0, 1, 2}));
}

TEST(TorchSampler, RefusesTheStateOfAnotherOrder) {
  TorchSampler other{Sampler(22, second_of_two)};
  TorchSampler sampler{Sampler(21, second_of_two)};
  sampler.set_epoch(4);
  EXPECT_EQ(test::refusal([&] { load(sampler, saved(other)); }),
            "loading a TorchSampler: expected samples 21, found 22");
  EXPECT_EQ(sampler.epoch(), 4);
  torch::serialize::OutputArchive archive;
  std::ostringstream empty;
  archive.save_to(empty);
  EXPECT_EQ(test::refusal([&] { load(sampler, empty.str()); }),
            "loading a TorchSampler: expected an integer named samples, found none");
}

}  // namespace
}  // namespace lockstep::data
