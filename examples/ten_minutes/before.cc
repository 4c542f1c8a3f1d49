// A program before any change: MNIST on one process with plain LibTorch, without Lockstep.
//
//   ten_minutes_before FOLDER [EPOCHS]      FOLDER holds the four MNIST files, unpacked
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(1, 8, 5))),
        conv2(register_module("conv2", torch::nn::Conv2d(8, 16, 5))),
        fc(register_module("fc", torch::nn::Linear(256, 10))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));
    return torch::log_softmax(fc->forward(x.flatten(1)), 1);
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc;
};
TORCH_MODULE(Net);

template <typename Loader>
double accuracy(Net& model, Loader& loader, int64_t samples) {
  torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  for (auto& batch : loader)
    right += model->forward(batch.data).argmax(1).eq(batch.target).sum().template item<int64_t>();
  return double(right) / double(samples);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [EPOCHS]\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 1;
  torch::manual_seed(1);

  auto dataset = [&](torch::data::datasets::MNIST::Mode mode) {
    return torch::data::datasets::MNIST(folder, mode)
        .map(torch::data::transforms::Normalize<>(0.1307, 0.3081))
        .map(torch::data::transforms::Stack<>());
  };
  auto train_set = dataset(torch::data::datasets::MNIST::Mode::kTrain);
  auto test_set = dataset(torch::data::datasets::MNIST::Mode::kTest);
  const int64_t samples = int64_t(*train_set.size());
  const int64_t test_samples = int64_t(*test_set.size());

  torch::data::samplers::RandomSampler sampler(samples);
  auto train_loader = torch::data::make_data_loader(std::move(train_set), std::move(sampler), 64);
  auto test_loader = torch::data::make_data_loader(std::move(test_set), 1000);

  Net model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    model->train();
    for (auto& batch : *train_loader) {
      optimizer.zero_grad();
      torch::nll_loss(model->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
    std::printf("epoch %d: accuracy %.4f\n", epoch, accuracy(model, *test_loader, test_samples));
  }
}
