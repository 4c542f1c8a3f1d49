// Parameters that are written between forward() and backward(): every level refuses the same writes
// as one process, and gives the same gradients after all other writes.
#include "parallel/sharded/pair.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/parallelize.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

namespace lockstep {
namespace {

using namespace test;

std::map<std::string, MakeOptimizer> optimizers() {
  using Parameters = std::vector<at::Tensor>;
  return {
      {"torch AdamW", adamw()},
      {"torch SGD", momentum()},
      {"torch Adam", [](Parameters all) { return std::make_unique<torch::optim::Adam>(all, 0.1); }},
      {"torch Adagrad",
       [](Parameters all) { return std::make_unique<torch::optim::Adagrad>(all, 0.1); }},
      {"torch RMSprop",
       [](Parameters all) { return std::make_unique<torch::optim::RMSprop>(all, 0.1); }},
      {"AdamW",
       [](Parameters all) {
         return std::make_unique<optim::AdamW>(all, torch::optim::AdamWOptions(0.1));
       }},
      {"Adam",
       [](Parameters all) {
         return std::make_unique<optim::Adam>(all, torch::optim::AdamOptions(0.1));
       }},
      {"SGD", [](Parameters all) {
         return std::make_unique<optim::SGD>(all, torch::optim::SGDOptions(0.1).momentum(0.9));
       }}};
}

// Returns autograd's error for a graph whose parameters were written since; "" if there is no
// error.
std::string refusal_of(const std::function<void()>& backward) {
  try {
    backward();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const ReductionFailed& error) {
    return error.what();
  }
  return "";
}

// Runs forward(), `write`, and backward() of that forward(); returns the error.
std::string refusal_after(torch::nn::Sequential& model, const std::function<void()>& write) {
  at::Tensor loss = model->forward(Pair::input()).tanh().sum();
  write();
  return refusal_of([&] { loss.backward(); });
}

class EarlyWrite : public OnEveryLevel {
 protected:
  // Makes the same write to the parameters of one process and to those of the handle, and compares.
  using Write = std::function<void(const std::vector<at::Tensor>&)>;
  void expect_alike(const std::string& what, const Write& write) {
    for (bool keeps : {false, true})
      run(
          [&](Pair& pair, Group) {
            const std::string expected =
                refusal_after(pair.plain, [&] { write(pair.plain->parameters()); });
            const std::string found =
                refusal_after(pair.model, [&] { write(pair.sharded->parameters()); });
            EXPECT_EQ(found.empty(), expected.empty()) << what << ": " << found;
            if (!expected.empty()) expect_contains(found, "inplace operation");
            if (expected.empty()) expect_same_gradients(pair);
          },
          {.reshard_after_forward = !keeps});
  }
};

TEST_P(EarlyWrite, ByHandIsRefusedWhereOneProcessRefusesIt) {
  torch::NoGradGuard no_grad;  // of this thread alone
  const auto each = [](const std::function<void(at::Tensor)>& write) {
    return [write](const std::vector<at::Tensor>& all) {
      torch::NoGradGuard off;
      for (const at::Tensor& one : all) write(one);
    };
  };
  expect_alike("mul_()", each([](at::Tensor one) { one.mul_(0.5); }));
  expect_alike("of detach()", each([](at::Tensor one) { one.detach().add_(1); }));
  expect_alike("of data()", each([](at::Tensor one) { one.data().add_(1); }));
  expect_alike("none", each([](at::Tensor) {}));
}

TEST_P(EarlyWrite, ByAnOptimizersStepIsRefusedWhereOneProcessRefusesIt) {
  for (const auto& [name, make] : optimizers())
    run([&, name = name, make = make](Pair& pair, Group) {
      const auto refusal = [&](torch::nn::Sequential& model, std::vector<at::Tensor> parameters,
                               const std::function<void()>& zero_grad) {
        auto optimizer = make(std::move(parameters));
        at::Tensor late = model->forward(Pair::input(2)).tanh().sum();
        model->forward(Pair::input()).sum().backward();
        optimizer->step();
        zero_grad();
        return refusal_of([&] { late.backward(); });
      };
      const std::string expected =
          refusal(pair.plain, pair.plain->parameters(), [&] { pair.plain->zero_grad(); });
      const std::string found =
          refusal(pair.model, pair.sharded->parameters(), [&] { pair.sharded->zero_grad(); });
      EXPECT_EQ(found.empty(), expected.empty()) << name << ": " << found;
      if (expected.empty()) expect_same_gradients(pair);
    });
}

TEST_P(EarlyWrite, OfWholeParametersIsRefused) {
  run([&](Pair& pair, Group) {
    const auto write = [](torch::nn::Sequential& model) {
      torch::NoGradGuard off;
      for (at::Tensor& one : model->parameters()) one.mul_(0.5);
    };
    expect_contains(refusal_after(pair.plain, [&] { write(pair.plain); }), "inplace operation");
    expect_contains(refusal_after(pair.model, [&] { write(pair.model); }), "inplace operation");
    pair.use();
  });
}

TEST_P(EarlyWrite, ByALoadIsRefused) {
  run([&](Pair& pair, Group) {
    const std::map<std::string, at::Tensor> now = pair.sharded->state_dict();
    expect_contains(refusal_after(pair.model, [&] { pair.sharded->load_state_dict(now); }),
                    "inplace operation");
    expect_contains(refusal_after(pair.model,
                                  [&] {
                                    for (const Part& part : pair.sharded->loading())
                                      part.tensor.mul_(1);
                                  }),
                    "inplace operation");
  });
}

// A write before forward() is allowed.
TEST_P(EarlyWrite, BeforeForwardIsNoTrouble) {
  run([&](Pair& pair, Group) {
    for (int turn = 0; turn < 3; ++turn) {
      {
        torch::NoGradGuard off;
        for (at::Tensor slice : pair.sharded->parameters()) slice.mul_(0.5);
        for (at::Tensor& one : pair.plain->parameters()) one.mul_(0.5);
        for (at::Tensor& one : pair.model->parameters()) one.mul_(2);
        for (at::Tensor& one : pair.plain->parameters()) one.mul_(2);
      }
      pair.sharded->zero_grad();
      pair.plain->zero_grad();
      pair.model->forward(Pair::input()).tanh().sum().backward();
      pair.plain->forward(Pair::input()).tanh().sum().backward();
      expect_same_gradients(pair);
    }
  });
}

// Each part of a fused weight is a leaf, which fsdp divides again.
TEST_P(EarlyWrite, UnderTensorParallelismIsRefused) {
  for (int written : {0, 1, 2})
    run_as_threads(4, [&](Group group) {
      const Mesh mesh(group, {{"fsdp", 2}, {"tp", 2}});
      torch::nn::Sequential model(torch::nn::Linear(4, 12), torch::nn::Linear(12, 12));
      fill_parameters(*model, 3);
      auto handle = parallelize(model.ptr(), mesh, {.tensor = {{"1", Colwise(3)}}},
                                {.shard = {.level = GetParam()}});
      const auto write = [&] {
        torch::NoGradGuard off;
        int number = 0;
        for (const Part& part : handle.named_parameters())
          if (part.name == "1.weight" && number++ == written) at::Tensor(part.tensor).mul_(0.5);
      };
      expect_contains(refusal_after(model, write), "inplace operation");
    });
}

INSTANTIATE_TEST_SUITE_P(Levels, EarlyWrite, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
