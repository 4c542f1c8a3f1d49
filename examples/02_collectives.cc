// The collectives on three numbers per rank; every rank checks its results.
//
//   lockstep run -n 4 02_collectives
#include <lockstep/lockstep.h>

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace ls = lockstep;

static void expect(bool right, const char* what) {
  if (!right) {
    std::fprintf(stderr, "%s: wrong result\n", what);
    std::exit(1);
  }
}

int main() try {
  ls::Group world = ls::init();
  const int size = world.size();
  const torch::Tensor mine = torch::full({3}, world.rank() + 1.0);

  torch::Tensor sum = mine.clone();
  world.all_reduce(sum).wait();
  expect(sum.equal(torch::full({3}, size * (size + 1) / 2.0)), "all_reduce");

  torch::Tensor from_root = mine.clone();
  world.broadcast(from_root, /*root=*/0).wait();
  expect(from_root.equal(torch::ones({3})), "broadcast");

  torch::Tensor all = torch::empty({size, 3});
  world.all_gather(all, mine).wait();
  expect(all.select(1, 0).equal(torch::arange(1, size + 1, torch::kFloat)), "all_gather");

  torch::Tensor part = torch::empty({3});
  world.reduce_scatter(part, all, ls::Op::average).wait();
  expect(part.equal(mine), "reduce_scatter");

  torch::Tensor exchanged = torch::empty({size});
  world.all_to_all(exchanged, torch::full({size}, float(world.rank()))).wait();
  expect(exchanged.equal(torch::arange(size, torch::kFloat)), "all_to_all");

  // send() and recv() only post: both messages are in flight before the first wait().
  torch::Tensor received = torch::empty({3});
  ls::Work to_right = world.send(mine, (world.rank() + 1) % size);
  ls::Work from_left = world.recv(received, (world.rank() + size - 1) % size);
  to_right.wait();
  from_left.wait();
  expect(received[0].item<float>() == float((world.rank() + size - 1) % size + 1), "send and recv");

  ls::Group pair = world.split(/*color=*/world.rank() / 2);
  torch::Tensor ones = torch::ones({1});
  pair.all_reduce(ones).wait();
  expect(ones.item<float>() == float(pair.size()), "split");

  if (world.is_root()) std::printf("collectives of %d ranks: all right\n", size);
} catch (const std::exception& error) {  // print one line instead of aborting
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
