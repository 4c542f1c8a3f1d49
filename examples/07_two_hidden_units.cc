// Tensor parallelism by hand: a network with two hidden units, one on each of two ranks.
//
//   lockstep run -n 2 build/release/examples/07_two_hidden_units
//
//   x = (1, 2)    rank 0: w = (0.5, 0.25)    h = relu(w x) = 1      v =  2     v h =  2
//                 rank 1: w = (-0.5, 1)      h = relu(w x) = 1.5    v = -1     v h = -1.5
//
//   y-hat = 2 - 1.5 = 0.5 by all_reduce; y = 1: the error is -0.5, the loss 0.5^2 / 2 = 0.125
//
// Backward needs no communication for the weights, because every rank knows the error:
//
//   rank 0: dv = -0.5 * 1   = -0.5     dh = -0.5 *  2 = -1      dw = dh x = (-1, -2)
//   rank 1: dv = -0.5 * 1.5 = -0.75    dh = -0.5 * -1 =  0.5    dw = dh x = (0.5, 1)
//   dx = -1 * (0.5, 0.25) + 0.5 * (-0.5, 1) = (-0.75, 0.25) by all_reduce, for layers before this
#include <lockstep/lockstep.h>
#include <torch/torch.h>

namespace ls = lockstep;

int main() {
  ls::Group world = ls::init();
  const int rank = world.rank();
  const at::Tensor x = torch::tensor({1.0, 2.0}), y = torch::tensor({1.0});
  const at::Tensor all_w = torch::tensor({0.5, 0.25, -0.5, 1.0}).view({2, 2});
  const at::Tensor all_v = torch::tensor({2.0, -1.0});

  // By hand: this rank has one unit.
  const at::Tensor w = all_w[rank], v = all_v[rank];
  const at::Tensor h = torch::relu(w.dot(x));
  at::Tensor y_hat = (v * h).view({1});
  world.all_reduce(y_hat).wait();
  const at::Tensor error = y_hat - y;
  const at::Tensor dv = error * h, dw = error * v * x;
  at::Tensor dx = error * v * w;
  world.all_reduce(dx).wait();

  // The same computation by an unmodified module and a plan.
  auto options = [](int in, int out) { return torch::nn::LinearOptions(in, out).bias(false); };
  torch::nn::Sequential model(torch::nn::Linear(options(2, 2)), torch::nn::ReLU(),
                              torch::nn::Linear(options(2, 1)));
  {
    torch::NoGradGuard no_grad;
    model->parameters()[0].copy_(all_w);
    model->parameters()[1].copy_(all_v.view({1, 2}));
  }
  auto tp = ls::parallelize(model, ls::Mesh(world, {{"tp", -1}}),
                            {.tensor = {{"0", ls::Colwise()}, {"2", ls::Rowwise()}}});
  at::Tensor loss = (model->forward(x.view({1, 2})) - y).square().sum() / 2;
  loss.backward();
  const auto parts = tp.parameters();
  const bool equal = parts[0].grad().clone().equal(dw.to(torch::kFloat)) &&
                     parts[1].grad().clone().equal(dv.to(torch::kFloat));

  for (int turn = 0; turn < world.size(); ++turn) {
    world.barrier().wait();
    if (turn != rank) continue;
    std::cout << "rank " << rank << ": h " << h.item<double>() << ", y-hat " << y_hat.item<double>()
              << ", loss " << loss.item<double>() << ", dv " << dv.item<double>() << ", dw ("
              << dw[0].item<double>() << ", " << dw[1].item<double>() << "), dx ("
              << dx[0].item<double>() << ", " << dx[1].item<double>() << "), parallelize() "
              << (equal ? "equal" : "different") << std::endl;
  }
}
