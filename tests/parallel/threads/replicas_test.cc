// Errors of DataParallel, one line each, and the names of devices.
#include <lockstep/parallel/threads/data_parallel.h>

#include "parallel/support.h"
#include "sys/topology.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <sched.h>

namespace lockstep {
namespace {

using namespace test;

std::vector<ComputeDevice> two() { return std::vector<ComputeDevice>(2); }

std::string refusal_of(const std::vector<ComputeDevice>& devices) {
  torch::nn::Linear model(2, 2);
  std::string text = message_of<InvalidArgument>([&] { DataParallel dp(model, devices); });
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

TEST(Devices, BadListsAreRefusedInOneLine) {
  expect_contains(refusal_of({}), "expected at least 1 device, found none");
  ComputeDevice cuda{.device = c10::Device(c10::kCUDA, 0)};
  expect_contains(refusal_of({cuda, cuda}), "cuda:0 is given twice, as devices 0 and 1");
  expect_contains(refusal_of({{.device = c10::Device(c10::kCUDA)}}), "cuda without a number");
  expect_contains(refusal_of({{.threads = 0}}), "at least 1 thread, found 0");
  int core = sys::allowed_cores().front();
  expect_contains(refusal_of({{.cores = {core}}, {.cores = {core}}}),
                  "core " + std::to_string(core) + " is given twice, for devices 0 and 1");
  expect_contains(refusal_of({{.cores = {99999}}}), "core 99999, which this process may not use");
  expect_contains(message_of<InvalidArgument>([] { (void)cpu_devices(0); }), "found 0");
  expect_contains(message_of<InvalidArgument>([] { (void)accelerator_devices(99); }), "found 99");
}

TEST(Devices, CoresAreDividedAndThreadsStayOnTheirs) {
  auto cores = sys::allowed_cores();
  int count = std::min(2, static_cast<int>(cores.size()));
  auto devices = cpu_devices(count);
  std::vector<int> all;
  for (const auto& device : devices) {
    EXPECT_EQ(device.threads, 1);  // OMP_NUM_THREADS=1
    all.insert(all.end(), device.cores.begin(), device.cores.end());
  }
  EXPECT_EQ(all, cores);
  EXPECT_EQ(describe({.cores = {7, 4, 5, 6, 9}}, 3), "device 3 (cpu, cores 4-7, 9)");
  EXPECT_EQ(describe({.device = c10::Device(c10::kCUDA, 1)}, 0), "device 0 (cuda:1)");
  torch::nn::Linear model(1, 1);
  DataParallel dp(model, devices);
  dp.forward(
      [&](torch::nn::Linear&, const at::Tensor& rows) {
        auto number = static_cast<std::size_t>(rows[0].item<int>());
        EXPECT_EQ(sys::allowed_cores(), devices[number].cores);
        return rows;
      },
      at::arange(count, at::kFloat).unsqueeze(1));
  EXPECT_EQ(sys::allowed_cores(), cores);
  for (const auto& device : cpu_devices(static_cast<int>(cores.size()) + 1))
    EXPECT_TRUE(device.cores.empty());
}

TEST(Replicas, BadInputsAreRefusedBeforeAnythingIsComputed) {
  torch::nn::Linear model(2, 2);
  DataParallel dp(model, two());
  auto loss = [](torch::nn::Linear& net, const at::Tensor& x, const at::Tensor& y) {
    return (net->forward(x) - y).square().mean();
  };
  at::Tensor x = at::ones({4, 2});
  auto refusal = [&](const at::Tensor& a, const at::Tensor& b) {
    return message_of<InvalidArgument>([&] { dp.backward(loss, a, b); });
  };
  expect_contains(refusal(x, at::ones({3, 2})), "input 0 has 4 rows, and input 1 has 3");
  expect_contains(refusal(at::ones({0, 2}), at::ones({0, 2})), "has no rows");
  expect_contains(refusal(at::ones({}), at::ones({})), "found none (inputs: 2)");
  expect_contains(refusal(x, at::Tensor()), "input 1 is an undefined tensor");
  expect_contains(refusal(at::ones({4, 2}).requires_grad_(), x), "input 0 requires a gradient");
  EXPECT_FALSE(model->weight.grad().defined());
  dp.backward(loss, x, at::ones({}));  // 0-dim tensors are passed whole to every device
  EXPECT_TRUE(model->weight.grad().defined());
  auto no_scalar = [](torch::nn::Linear& net, const at::Tensor& rows) {
    return net->forward(rows);
  };
  expect_contains(message_of<DeviceFailed>([&] { dp.backward(no_scalar, x); }),
                  "must return one element, the mean over its rows; found sizes [2, 2]");
  auto one_row = [](torch::nn::Linear&, const at::Tensor& rows) { return rows[0]; };
  expect_contains(message_of<DeviceFailed>([&] {
                    (void)dp.forward(one_row, at::ones({6, 2}));
                  }),
                  "must have as many rows, found sizes [2]");
}

// A module whose clone() shares a layer with the original.
struct SharingImpl : torch::nn::Cloneable<SharingImpl> {
  SharingImpl() { reset(); }
  void reset() override {
    layers.push_back(register_module("layer", torch::nn::Linear(2, 2)));  // and is never cleared
  }
  at::Tensor forward(const at::Tensor& x) { return layers.front()->forward(x); }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Sharing);

TEST(Replicas, ModelsThatCannotBeReplicatedAreNamed) {
  ConvNet plain;  // a torch::nn::Module without clone()
  expect_contains(message_of<InvalidArgument>([&] { DataParallel dp(plain, two()); }),
                  "cannot be cloned");
  DataParallel alone(plain, {ComputeDevice()});  // one device needs no replica
  torch::nn::Linear model(2, 2);
  auto made = [&](std::function<std::shared_ptr<torch::nn::Module>()> make) {
    return message_of<InvalidArgument>(
        [&] { DataParallel dp(model, two(), {.make_replica = make}); });
  };
  expect_contains(made([] { return torch::nn::Linear(2, 3).ptr(); }),
                  "the model has parameter weight: Float [2, 2]; the replica has parameter weight: "
                  "Float [3, 2]");
  expect_contains(made([&] { return model.ptr(); }), "the model itself");
  expect_contains(made([] { return std::shared_ptr<torch::nn::Module>(); }), "found none");
  expect_contains(
      made([] { return torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)).ptr(); }),
      "the replica has nothing more");
  auto loss = [](Sharing& net, const at::Tensor& x) { return net->forward(x).sum(); };
  // Two devices accumulate into one gradient concurrently; LibTorch may detect that first.
  std::string message;
  for (int i = 0; i < 10 && message.find(" of the model itself") == std::string::npos; ++i) {
    Sharing sharing;
    DataParallel dp(sharing, two());
    message = message_of<DeviceFailed>([&] { dp.backward(loss, at::ones({2, 2})); });
  }
  expect_contains(message, " of the model itself: its clone() has kept");
}

TEST(Replicas, ChangesOfTheModelAreNoticed) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2));
  DataParallel dp(model, two());
  auto loss = [](torch::nn::Sequential& net, const at::Tensor& x) { return net->forward(x).sum(); };
  auto refusal = [&] {
    return message_of<InvalidArgument>([&] { dp.backward(loss, at::ones({2, 2})); });
  };
  model->to(at::kDouble);
  expect_contains(refusal(), "0.weight is Double [2, 2] on cpu now, and was Float [2, 2]");
  model->to(at::kFloat);
  dp.backward(loss, at::ones({2, 2}));
  model->push_back(torch::nn::Linear(2, 2));
  expect_contains(refusal(), "1.weight");
}

TEST(Replicas, BuffersThatWouldDifferAreNamed) {
  torch::nn::Linear model(2, 2);
  auto loss = [](torch::nn::Linear& net, const at::Tensor& x) {
    if (!net->named_buffers().contains("seen")) net->register_buffer("seen", x.mean(0));
    return net->forward(x).sum();
  };
  {
    DataParallel dp(model, two());
    dp.backward(loss, at::ones({2, 2}));
    for (int again = 0; again < 2; ++again) {
      expect_contains(message_of<InvalidArgument>([&] {
                        dp.backward(loss, at::ones({2, 2}));
                      }),
                      "seen is a new buffer since DataParallel was made");
      expect_contains(message_of<InvalidArgument>([&] { dp.zero_grad(); }), "seen is a new buffer");
    }
  }
  torch::nn::Linear other(2, 2);
  DataParallel dp(other, two(), {.broadcast_buffers = false});
  for (int again = 0; again < 2; ++again) dp.backward(loss, at::ones({2, 2}));
}

TEST(Replicas, ABufferThatRequiresAGradientIsRefused) {
  torch::nn::Linear model(2, 2);
  model->register_buffer("scale", at::ones({2}).requires_grad_());
  expect_contains(message_of<InvalidArgument>([&] { DataParallel dp(model, two()); }),
                  "DataParallel: buffer scale requires a gradient");
}

TEST(Replicas, AnotherHandlesParametersAreRefused) {
  torch::nn::Linear model(2, 2);
  DistributedDataParallel ddp(model, Group());
  expect_contains(message_of<InvalidArgument>([&] { DataParallel dp(model, two()); }),
                  "belongs to another handle");
}

}  // namespace
}  // namespace lockstep
