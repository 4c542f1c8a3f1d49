// Compares DataParallel with one process and with DistributedDataParallel on `shm`.
#include <lockstep/parallel/threads/data_parallel.h>

#include "parallel/problems.h"

#include <lockstep/module/state_dict.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include <mutex>
#include <stdexcept>

namespace lockstep {
namespace {

using namespace test;

// Without pinned cores, because tests run concurrently.
std::vector<ComputeDevice> cpus(int count) {
  return std::vector<ComputeDevice>(static_cast<std::size_t>(count));
}

DataParallelOptions made_by(const Problem& problem) { return {.make_replica = problem.make}; }

using Model = std::shared_ptr<torch::nn::Module>;

// The numbers of the micro-batches of a step: device i of `devices` has micro-batch step * devices
// + i of problems().
at::Tensor numbers(int step, int devices) {
  return at::arange(step * devices, (step + 1) * devices, at::kLong);
}

at::Tensor loss_of(const Problem& problem, torch::nn::Module& model, const at::Tensor& number) {
  return problem.loss(model, number.item<std::int64_t>());
}

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : named_tensors(module)) all.push_back(tensor.clone());
  return all;
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                 const std::string& where) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << where << i;
}

std::vector<at::Tensor> trained_by_threads(const Problem& problem, int devices, int steps) {
  Model model = problem.make();
  fill_parameters(*model, 5);
  DataParallel dp(model, cpus(devices), made_by(problem));
  optim::AdamW adamw(dp.parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < steps; ++step) {
    dp.zero_grad();
    dp.backward([&](auto& net, const at::Tensor& number) { return loss_of(problem, net, number); },
                numbers(step, devices));
    adamw.step();
  }
  return values_of(*model);
}

class DataParallelOf : public testing::TestWithParam<int> {};

TEST_P(DataParallelOf, EqualsDistributedDataParallelOnShmBitForBit) {
  const int devices = GetParam();
  for (const Problem& problem : problems()) {
    auto expected = trained_by_threads(problem, devices, 4);
    run_group(BackendKind::shm, devices, [&](Group group) {
      Model model = problem.make();
      fill_parameters(*model, group.is_root() ? 5 : 77);
      DistributedDataParallel ddp(model, group);
      optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        problem.loss(*model, step * devices + group.rank()).backward();
        adamw.step();
      }
      expect_same(values_of(*model), expected, problem.name + ", tensor ");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DataParallelOf, testing::Values(1, 2, 3, 5));

torch::nn::Sequential small_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 3));
  fill_parameters(*net, 3);
  return net;
}

at::Tensor class_loss(torch::nn::Sequential& net, const at::Tensor& x, const at::Tensor& y) {
  return torch::nn::functional::cross_entropy(net->forward(x), y);
}

// Numbers of rows that are not divisible by the number of devices, or smaller than it; two
// backward() per step.
TEST(DataParallel, UnevenRowsCountAlikeAsInOneProcess) {
  for (int devices : {1, 2, 3, 4}) {
    for (std::int64_t rows : {1, 2, 3, 7, 10}) {
      torch::nn::Sequential one = small_net(), many = small_net();
      DataParallel dp(many, cpus(devices));
      for (int part = 0; part < 2; ++part) {
        at::Tensor x = values({rows, 4}, part), y = at::arange(rows).remainder(3);
        at::Tensor expected = class_loss(one, x, y);
        expected.backward();
        at::Tensor loss = dp.backward(class_loss, x, y);
        EXPECT_FALSE(loss.requires_grad());
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
        for (std::size_t i = 0; i < one->parameters().size(); ++i)
          EXPECT_TRUE(
              at::allclose(one->parameters()[i].grad(), many->parameters()[i].grad(), 1e-5, 1e-7))
              << devices << " devices, " << rows << " rows, parameter " << i;
      }
    }
  }
}

TEST(DataParallel, CountsByTheWeightThatALossGives) {
  torch::nn::Sequential one = small_net(), many = small_net();
  at::Tensor x = values({6, 4}, 1), y = at::tensor({0, -100, -100, 1, -100, -100}, at::kLong);
  class_loss(one, x, y).backward();
  DataParallel dp(many, cpus(3));  // 1, 1 and 0 targets that are not ignored
  dp.backward(
      [](torch::nn::Sequential& net, const at::Tensor& rows, const at::Tensor& targets) {
        return DeviceLoss(class_loss(net, rows, targets), (targets >= 0).sum().item<double>());
      },
      x, y);
  for (std::size_t i = 0; i < one->parameters().size(); ++i)
    EXPECT_TRUE(
        at::allclose(one->parameters()[i].grad(), many->parameters()[i].grad(), 1e-5, 1e-7));
  auto nothing = [](torch::nn::Sequential& net, const at::Tensor& rows) {
    return DeviceLoss(net->forward(rows).sum(), 0.0);
  };
  expect_contains(message_of<InvalidArgument>([&] { dp.backward(nothing, x); }), "weight 0");
}

TEST(DataParallel, SeesWhateverHasChangedTheModel) {
  torch::nn::Sequential model = small_net();
  DataParallel dp(model, cpus(3));
  at::Tensor x = values({9, 4}, 1);
  auto outputs = [](torch::nn::Sequential& net, const at::Tensor& rows) {
    return net->forward(rows);
  };
  auto same_as_alone = [&] {
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(dp.forward(outputs, x), model->forward(x), 1e-6, 1e-7));
  };
  same_as_alone();
  fill_parameters(*model, 9);
  same_as_alone();
  auto state = dp.state_dict();
  for (auto& [name, tensor] : state) tensor = tensor * 2;
  dp.load_state_dict(state);
  same_as_alone();
  {
    auto scope = dp.no_sync();
    dp.backward(class_loss, x, at::arange(9).remainder(3));
  }
  at::Tensor once = model->parameters()[0].grad().clone();
  dp.backward(class_loss, x, at::arange(9).remainder(3));
  EXPECT_TRUE(at::allclose(model->parameters()[0].grad(), 2 * once));
  EXPECT_FALSE(dp.forward(outputs, x).requires_grad());
  EXPECT_EQ(dp.group().size(), 1);
  EXPECT_EQ(dp.memory().whole, 3 * 4 * (4 * 6 + 6 + 6 * 3 + 3));
}

// The buffers and the training flags of the first device are copied to the others before each step.
TEST(DataParallel, ReplicasFollowBuffersAndTrainingFlags) {
  ConvNet model;
  DataParallel dp(model, cpus(2), {.make_replica = [] { return ConvNet().ptr(); }});
  at::Tensor x = values({6, 36}, 1);
  auto loss = [](ConvNet& net, const at::Tensor& rows) { return image_loss(net->forward(rows)); };
  dp.backward(loss, x);
  EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), 1);
  at::Tensor mean = model->norm->running_mean.clone();
  model->eval();
  std::vector<bool> trains(2);
  std::vector<at::Tensor> means(2);
  int device = 0;
  std::mutex mutex;
  dp.forward(
      [&](ConvNet& net, const at::Tensor& rows) {
        std::lock_guard lock(mutex);
        trains[static_cast<std::size_t>(device)] = net->norm->is_training();
        means[static_cast<std::size_t>(device++)] = net->norm->running_mean.clone();
        return rows;
      },
      x);
  EXPECT_EQ(trains, std::vector<bool>({false, false}));
  for (const at::Tensor& one : means) EXPECT_TRUE(same_bits(one, mean));
}

TEST(DataParallel, ParametersWithoutAPartKeepTheirGradients) {
  Branches model;
  DataParallel dp(model, cpus(2), {.make_replica = [] { return Branches().ptr(); }});
  // Each device has one row; the second one does not use layer b.
  auto loss = [](Branches& net, const at::Tensor& x) {
    return net->forward(x, x.sum().item<double>() > 0 ? "ab" : "a").square().mean();
  };
  dp.backward(loss, at::stack({at::ones({3}), -at::ones({3})}));
  EXPECT_TRUE(model->layers[1]->weight.grad().defined());
  EXPECT_FALSE(model->layers[2]->weight.grad().defined());
}

TEST(DataParallel, AFrozenParameterIsFrozenOnAllDevices) {
  Branches model;
  DataParallel dp(model, cpus(2), {.make_replica = [] { return Branches().ptr(); }});
  model->layers[0]->weight.set_requires_grad(false);
  dp.backward([](Branches& net, const at::Tensor& x) { return net->forward(x, "ab").mean(); },
              values({4, 3}, 1));
  EXPECT_FALSE(model->layers[0]->weight.grad().defined());
  EXPECT_TRUE(model->layers[1]->weight.grad().defined());
}

TEST(DataParallel, RandomNumbersRepeat) {
  auto gradients = [](int devices) {
    torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Dropout(0.5),
                              torch::nn::Linear(64, 1));
    fill_parameters(*net, 2);
    DataParallel dp(net, cpus(devices));
    torch::manual_seed(7);
    for (int i = 0; i < 5; ++i)
      dp.backward(
          [](torch::nn::Sequential& one, const at::Tensor& x) {
            at::Tensor noise = at::rand({x.size(0), 8}) + at::randn({8}) + at::randperm(8);
            return one->forward(x + noise).mean();
          },
          at::ones({8, 8}));
    return gradients_of(net->parameters());
  };
  for (int devices : {1, 2, 4}) {
    auto first = gradients(devices);
    for (int again = 0; again < 3; ++again)
      expect_same(first, gradients(devices), std::to_string(devices) + " devices, parameter ");
  }
  // Devices draw different random numbers.
  torch::nn::Sequential net(torch::nn::Linear(1, 1));
  DataParallel dp(net, cpus(2));
  at::Tensor drawn = dp.forward(
      [](torch::nn::Sequential&, const at::Tensor& x) {
        return at::rand({x.size(0), 4});
      },
      at::zeros({2, 1}));
  EXPECT_FALSE(at::equal(drawn[0], drawn[1]));
}

TEST(DataParallel, AnExceptionNamesItsDeviceAndNothingIsLost) {
  torch::nn::Sequential model = small_net();
  DataParallel dp(model, cpus(3));
  at::Tensor x = values({9, 4}, 1), y = at::arange(9).remainder(3);
  dp.backward(class_loss, x, y);
  auto before = gradients_of(model->parameters());
  for (std::int64_t failing : {0, 1, 2}) {
    auto loss = [&](torch::nn::Sequential& net, const at::Tensor& rows, const at::Tensor& targets) {
      if (at::equal(rows[0], x[3 * failing])) throw std::out_of_range("no such row\nmore");
      return class_loss(net, rows, targets);
    };
    try {
      dp.backward(loss, x, y);
      ADD_FAILURE() << "expected an error";
    } catch (const DeviceFailed& error) {
      EXPECT_EQ(std::string(error.what()),
                "DataParallel: device " + std::to_string(failing) + " (cpu): no such row");
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
    expect_same(gradients_of(model->parameters()), before, "gradient ");
  }
  dp.zero_grad();
  dp.backward(class_loss, x, y);
  expect_same(gradients_of(model->parameters()), before, "gradient ");
  auto wrong_sizes = [](torch::nn::Sequential& net, const at::Tensor& rows) {
    return net->forward(rows.narrow(1, 0, 2)).sum();
  };
  expect_contains(message_of<DeviceFailed>([&] { dp.backward(wrong_sizes, x); }), "device 0 (cpu)");
}

struct SharedPairImpl : torch::nn::Cloneable<SharedPairImpl> {
  SharedPairImpl() { reset(); }
  void reset() override {
    a = register_parameter("a", values({4, 6}, 1));
    b = register_parameter("b", values({24}, 2));
  }
  at::Tensor a, b;
};

// Autograd gives both parameters one memory. With 3 rows, the devices' parts have weights.
TEST(DataParallel, GradientsThatShareMemoryAreReducedInCopies) {
  for (std::int64_t rows : {2, 3}) {
    auto model = std::make_shared<SharedPairImpl>();
    DataParallel dp(model, cpus(2));
    at::Tensor x = values({rows, 24}, 3);
    dp.backward(
        [](SharedPairImpl& net, const at::Tensor& some) {
          return ((net.a.view({24}) + net.b) * some).sum(1).mean();
        },
        x);
    EXPECT_TRUE(at::allclose(model->a.grad().view({24}), x.mean(0)));
    EXPECT_TRUE(at::allclose(model->b.grad(), x.mean(0)));
  }
}

}  // namespace
}  // namespace lockstep
