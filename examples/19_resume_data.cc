// A checkpoint with the position of a data loader: a run that stopped in the middle of an epoch
// resumes with the batches that it has not seen.
//
//   lockstep run -n 2 19_resume_data OUT
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace ls = lockstep;

struct Numbers {
  std::size_t size() const { return 48; }
  torch::data::Example<> get(std::size_t index) const {
    return {torch::full({1}, double(index)), torch::full({1}, 2 * double(index))};
  }
};

// Trains until `last_step` from the state in `folder`, and returns the first number of each batch.
std::vector<int> train(ls::Group& world, const std::string& folder, std::int64_t last_step) {
  torch::nn::Linear model(1, 1);
  ls::DistributedDataParallel ddp(model, world);
  torch::optim::Adam adam(ddp.parameters(), 0.01);
  auto loader = ls::data::loader(Numbers(), {.batch_size = 8, .group = world});
  std::int64_t step = 0;
  if (auto saved = ls::checkpoint::load_latest(folder, ddp, adam)) {
    step = saved->step;
    loader.resume(ls::data::LoaderState::from_text(saved->progress.at("loader")));
  }
  std::vector<int> seen;
  for (std::int64_t epoch = loader.state().epoch; step < last_step; ++epoch)
    for (auto& batch : loader.epoch(epoch)) {
      ddp.zero_grad();
      torch::mse_loss(model->forward(batch.data), batch.target).backward();
      adam.step();
      seen.push_back(batch.data[0].item<int>());
      if (++step == last_step) break;
    }
  ls::checkpoint::save(folder, ddp, adam,
                       {.step = step, .progress = {{"loader", loader.state().to_text()}}});
  return seen;
}

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  const std::string out = argc > 1 ? argv[1] : "out";
  const std::vector<int> whole = train(world, out + "/whole", 9);  // 1.5 epochs
  std::vector<int> parts = train(world, out + "/parts", 4);
  for (int number : train(world, out + "/parts", 9)) parts.push_back(number);
  if (world.is_root())
    std::printf("%zu batches, %s\n", parts.size(), parts == whole ? "the same" : "others");
  return parts == whole ? 0 : 1;
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
