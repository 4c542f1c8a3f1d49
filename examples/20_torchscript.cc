// A TorchScript module trains like any other model if its parameters are registered in a
// torch::nn::Module. The script shares the trained values, so script.save() writes them.
//
//   lockstep run -n 2 build/release/examples/20_torchscript
#include <lockstep/lockstep.h>

#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace ls = lockstep;

struct Scripted : torch::nn::Module {
  explicit Scripted(torch::jit::Module the_script) : script(std::move(the_script)) {
    for (const auto& parameter : script.named_parameters()) {
      std::string name = parameter.name;
      std::replace(name.begin(), name.end(), '.', '_');  // a registered name has no dots
      register_parameter(name, parameter.value);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return script.forward({x}).toTensor(); }
  torch::jit::Module script;
};

// Returns a module as torch::jit::load() would.
static torch::jit::Module make_script() {
  torch::manual_seed(1);
  torch::jit::Module script("script");
  script.register_parameter("weight", torch::randn({4, 1}) * 0.1, /*is_buffer=*/false);
  script.register_parameter("bias", torch::zeros({1}), /*is_buffer=*/false);
  script.define("def forward(self, x):\n    return x @ self.weight + self.bias\n");
  return script;
}

int main() try {
  ls::Group world = ls::init();
  Scripted model(make_script());
  ls::DistributedDataParallel ddp(model, world);
  torch::optim::SGD sgd(ddp.parameters(), 0.1);
  const torch::Tensor slope = torch::arange(1, 5, torch::kFloat).view({4, 1});
  torch::Tensor loss;
  for (int step = 0; step < 200; ++step) {
    torch::manual_seed(step * world.size() + world.rank());
    const torch::Tensor x = torch::rand({32, 4}) * 2 - 1;
    ddp.zero_grad();
    loss = torch::mse_loss(model.forward(x), x.matmul(slope) + 3);
    loss.backward();
    sgd.step();
  }
  if (world.is_root())
    std::printf("final loss %.6f, bias of the script %.3f\n", loss.item<double>(),
                model.script.attr("bias").toTensor().item<double>());
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
