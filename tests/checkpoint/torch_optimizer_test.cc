// Optimizer states are loaded from Python's torch.optim and back, and training continues.
#include "checkpoint/torch_python.h"
#include "support/messages.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/torch_optimizer.h>
#include <lockstep/comm/local.h>
#include <lockstep/global/tensor.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

// Trains two parameters in Python for 2 steps, saves, and then trains 2 more steps from the file,
// which may have been replaced. The gradients are known numbers.
const std::string trained = R"(
mode, path, kind, options = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
a, b = torch.arange(6.).view(2, 3), torch.full((4,), -2.)
def steps(optimizer, first):
    for number in range(first, first + 2):
        a.grad, b.grad = torch.full_like(a, 0.1 * number), torch.sin(b + number)
        optimizer.step()
optimizer = getattr(torch.optim, kind)([{"params": [a], "lr": 0.01}, {"params": [b]}], **options)
if mode == "save":
    steps(optimizer, 1)
    torch.save({"a": a, "b": b, "optimizer": optimizer.state_dict()}, path)
    steps(optimizer, 3)
    torch.save({"a": a, "b": b}, path + ".end")
else:
    saved = torch.load(path, weights_only=True)
    a.copy_(saved["a"]); b.copy_(saved["b"])
    optimizer.load_state_dict(saved["optimizer"])
    steps(optimizer, 3)
    expected = torch.load(path + ".end", weights_only=True)
    torch.testing.assert_close(a, expected["a"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(b, expected["b"], rtol=1e-6, atol=1e-6)
)";

struct Two {
  at::Tensor a = at::arange(6.).view({2, 3}), b = at::full({4}, -2.);
};

void steps(torch::optim::Optimizer& optimizer, Two& two, int first) {
  for (int number = first; number < first + 2; ++number) {
    two.a.mutable_grad() = at::full_like(two.a, 0.1 * number);
    two.b.mutable_grad() = at::sin(two.b + number);
    optimizer.step();
  }
}

class TorchOptimizer : public TorchFile {
 protected:
  // Python saves after 2 steps; our optimizer loads the file and must match Python after 2 more
  // steps. Then Python continues from the file that our optimizer saved after 2 steps.
  template <class Optimizer, class Options>
  void expect_both_ways(const char* kind, const char* python, const Options& wrong) {
    SCOPED_TRACE(kind);
    SCOPED_TRACE(python);
    expect_python(trained, {"save", path(), kind, python});
    const auto saved = read_torch_file(path()).toGenericDict();
    const NamedTensors end = tensors_in(read_torch_file(path() + ".end"));
    Two two{saved.at("a").toTensor(), saved.at("b").toTensor()};
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector{two.a});
    groups.emplace_back(std::vector{two.b});
    Optimizer optimizer(groups, wrong);  // replaced by the hyperparameters of the file
    load_torch_optimizer(optimizer, saved.at("optimizer"));
    auto values = dict();
    values.insert("a", two.a.clone());
    values.insert("b", two.b.clone());
    values.insert("optimizer", torch_optimizer(optimizer));
    write_torch_file(path(), values);
    steps(optimizer, two, 3);
    EXPECT_TRUE(at::allclose(two.a, end.at("a"), 1e-6, 1e-6)) << two.a << end.at("a");
    EXPECT_TRUE(at::allclose(two.b, end.at("b"), 1e-6, 1e-6)) << two.b << end.at("b");
    expect_python(trained, {"load", path(), kind, "{}"});
  }
};

TEST_F(TorchOptimizer, GoesBothWays) {
  using namespace torch::optim;
  const char* adam = "dict(lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)";
  expect_both_ways<AdamW>("AdamW", adam, AdamWOptions(1));
  expect_both_ways<Adam>("Adam", adam, AdamOptions(1));
  expect_both_ways<Adam>("Adam", "dict(lr=0.1, amsgrad=True)", AdamOptions(1));
  expect_both_ways<SGD>("SGD", "dict(lr=0.1, momentum=0.9, dampening=0.1)", SGDOptions(1));
  expect_both_ways<SGD>("SGD", "dict(lr=0.1, momentum=0.9, nesterov=True)", SGDOptions(1));
  expect_both_ways<SGD>("SGD", "dict(lr=0.1, weight_decay=0.1)", SGDOptions(1));
  expect_both_ways<RMSprop>("RMSprop", "dict(lr=0.1, centered=True, momentum=0.5, alpha=0.8)",
                            RMSpropOptions(1));
  expect_both_ways<Adagrad>("Adagrad", "dict(lr=0.1, lr_decay=0.1)", AdagradOptions(1));
  expect_both_ways<optim::AdamW>("AdamW", adam, AdamWOptions(1));
  expect_both_ways<optim::SGD>("SGD", "dict(lr=0.1, momentum=0.9)", SGDOptions(1));
}

// A tensor as learning rate, keys of schedulers, parameters without state, and other options.
TEST_F(TorchOptimizer, TakesWhatPythonAddsToGroups) {
  const auto saved = from_python(R"(
a, b = torch.ones(2), torch.ones(3)
optimizer = torch.optim.AdamW([("a", a), ("b", b)], lr=torch.tensor(0.25), foreach=False)
torch.optim.lr_scheduler.StepLR(optimizer, 10)
a.grad = torch.ones(2)
optimizer.step()
torch.save(optimizer.state_dict(), sys.argv[1])
)");
  torch::optim::AdamW optimizer({at::ones(2), at::ones(3)}, torch::optim::AdamWOptions(1));
  load_torch_optimizer(optimizer, saved);
  const auto& group = optimizer.param_groups()[0];
  EXPECT_EQ(static_cast<const torch::optim::AdamWOptions&>(group.options()).lr(), 0.25);
  EXPECT_EQ(optimizer.state().count(group.params()[0].unsafeGetTensorImpl()), 1u);
  EXPECT_EQ(optimizer.state().count(group.params()[1].unsafeGetTensorImpl()), 0u);
}

// Python's optimizer ascends, too, and continues in the same direction.
TEST_F(TorchOptimizer, KeepsTheDirection) {
  const std::string ascends = R"(
w = torch.zeros(3)
optimizer = torch.optim.AdamW([w], lr=0.5, maximize=True)
w.grad = torch.ones(3)
optimizer.step()
assert (w > 0).all()
torch.save(optimizer.state_dict(), sys.argv[1])
)";
  const auto saved = from_python(ascends);
  const at::Tensor w = at::zeros({3});
  optim::AdamW ours({w}, torch::optim::AdamWOptions(1), {.maximize = true});
  load_torch_optimizer(ours, saved);
  w.mutable_grad() = at::ones({3});
  ours.step();
  EXPECT_TRUE(w.gt(0).all().item<bool>());
  write_torch_file(path(), torch_optimizer(ours));
  expect_python(R"(
optimizer = torch.optim.AdamW([torch.zeros(3)], lr=1)
optimizer.load_state_dict(torch.load(sys.argv[1], weights_only=True))
assert optimizer.param_groups[0]["maximize"] is True
)",
                {path()});
  optim::AdamW descends({w}, torch::optim::AdamWOptions(1));
  const std::string refused =
      test::message_of<BadInput>([&] { load_torch_optimizer(descends, saved); });
  test::expect_words(refused, {"param_groups.0.maximize: expected false", "found true"});
  auto other = torch_optimizer(descends);
  test::expect_words(test::message_of<BadInput>([&] { load_torch_optimizer(ours, other); }),
                     {"param_groups.0.maximize: expected true", "found false"});
}

TEST(TorchOptimizerRefusals, AShardOfAGlobalTensorIsAPart) {
  run_as_threads(2, [](Group group) {
    const Mesh mesh(group, {{"tp", -1}});
    const at::Tensor divided =
        distribute(at::ones({4, 2}), mesh, {Shard(0)}).detach().requires_grad_();
    const at::Tensor whole =
        distribute(at::ones({4, 2}), mesh, {Replicate()}).detach().requires_grad_();
    optim::AdamW of_parts({divided}, torch::optim::AdamWOptions(1));
    optim::AdamW of_wholes({whole}, torch::optim::AdamWOptions(1));
    const auto state = torch_optimizer(of_wholes);
    for (const auto& refused :
         std::vector<std::function<void()>>{[&] { (void)torch_optimizer(of_parts); },
                                            [&] { load_torch_optimizer(of_parts, state); }})
      test::expect_words(test::message_of<InvalidArgument>(refused),
                         {"expected whole parameters, found a part of one"});
  });
}

TEST(TorchOptimizerRefusals, NameWhatDoesNotFit) {
  Two two;
  torch::optim::AdamW optimizer({two.a, two.b}, torch::optim::AdamWOptions(0.1));
  steps(optimizer, two, 1);
  const auto before = torch_optimizer(optimizer);
  auto refusal = [&](const std::function<void(c10::impl::GenericDict&)>& change) {
    auto state = torch_optimizer(optimizer).toGenericDict();
    change(state);
    return test::message_of<BadInput>([&] { load_torch_optimizer(optimizer, state); });
  };
  auto group = [](const c10::impl::GenericDict& state) {
    return state.at("param_groups").toListRef()[0].toGenericDict();
  };
  auto state_of = [](const c10::impl::GenericDict& state, std::int64_t number) {
    return state.at("state").toGenericDict().at(number).toGenericDict();
  };
  const std::vector<std::pair<std::function<void(c10::impl::GenericDict&)>, std::string>> cases{
      {[](auto& state) { (void)state.erase("state"); }, "state_dict has no state"},
      {[](auto& state) { state.insert_or_assign("param_groups", 1); },
       "expected a list, found Int"},
      {[&](auto& state) { group(state).insert_or_assign("lr", NAN); },
       "param_groups.0.lr: expected a finite number, found nan"},
      {[&](auto& state) { group(state).insert_or_assign("lr", true); }, "found Bool"},
      {[&](auto& state) { group(state).insert_or_assign("maximize", true); },
       "maximize: expected false"},
      {[&](auto& state) { group(state).insert_or_assign("decoupled_weight_decay", false); },
       "expected true, the weight decay of AdamW"},
      {[&](auto& state) { group(state).insert_or_assign("params", c10::List<std::int64_t>({0})); },
       "params: expected as many parameters as the group has, 2, found 1"},
      {[&](auto& state) { state.at("state").toGenericDict().insert(7, dict()); },
       "found 3 entries, but only 2 belong to parameters"},
      {[&](auto& state) { state_of(state, 1).insert_or_assign("exp_avg", at::ones(5)); },
       "expected shape [4], found [5]"},
      {[&](auto& state) { (void)state_of(state, 1).erase("exp_avg_sq"); }, "exp_avg_sq"},
      {[&](auto& state) { state_of(state, 1).insert("momentum", at::ones(4)); }, "does not keep"},
      {[&](auto& state) { state_of(state, 0).insert_or_assign("step", 0.5); },
       "expected an integer, found 0.5"},
      {[&](auto& state) { state_of(state, 0).insert_or_assign("exp_avg", 1); },
       "expected a tensor, found Int"},
  };
  for (const auto& [change, expected] : cases)
    EXPECT_NE(refusal(change).find(expected), std::string::npos) << refusal(change) << expected;
  const NamedTensors first = tensors_in(before), after = tensors_in(torch_optimizer(optimizer));
  for (const auto& [name, tensor] : first) EXPECT_TRUE(tensor.equal(after.at(name))) << name;
}

}  // namespace
}  // namespace lockstep::checkpoint
