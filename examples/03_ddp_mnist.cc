// MNIST with DistributedDataParallel: the loop of a single process, with four changed lines.
//
//   lockstep run -n 2 03_ddp_mnist FOLDER [EPOCHS]      FOLDER holds the four MNIST files, plain or
//   .gz
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;

static void train(const std::string& folder, int epochs) {
  ls::Group world = ls::init();  // the launcher's environment; a single rank without a launcher
  torch::manual_seed(1);
  ls::models::ConvNet model;                      // any torch::nn module, unchanged
  ls::DistributedDataParallel ddp(model, world);  // gradients are averaged during backward()
  torch::optim::SGD sgd(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto loader = ls::data::loader(ls::data::mnist(folder), {.batch_size = 64, .group = world});

  for (int epoch = 0; epoch < epochs; ++epoch) {
    torch::Tensor seen = torch::zeros({2});    // correct predictions, all predictions
    for (auto& batch : loader.epoch(epoch)) {  // this rank's share, in another order each epoch
      ddp.zero_grad();
      torch::Tensor output = model->forward(batch.data);
      torch::nll_loss(output, batch.target).backward();
      sgd.step();
      seen += torch::stack(
          {output.argmax(1).eq(batch.target).sum(), torch::tensor(batch.target.size(0))});
    }
    world.all_reduce(seen).wait();
    if (world.is_root()) {
      std::printf("epoch %d: training accuracy %.4f\n", epoch, (seen[0] / seen[1]).item<double>());
    }
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [EPOCHS]\n", argv[0]);
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::atoi(argv[2]) : 1);
  } catch (const ls::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
