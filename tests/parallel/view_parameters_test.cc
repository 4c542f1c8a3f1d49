// A parameter that was registered as an autograd view (w.t(), w.unsqueeze(0), a slice) trains like
// its copy under every strategy; a non-leaf parameter is refused by name.
#include "parallel/sharded/support.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include <lockstep/global/tensor.h>

#include <torch/optim/adagrad.h>

namespace lockstep {
namespace {

using namespace test;

using View = std::function<at::Tensor(const at::Tensor&)>;

std::map<std::string, View> views() {
  return {{"transposed", [](const at::Tensor& w) { return w.t(); }},
          {"viewed",
           [](const at::Tensor& w) {
             return w.view({36}).view({6, 6});
           }},
          {"with a dim more", [](const at::Tensor& w) { return w.unsqueeze(0); }},
          {"a part",
           [](const at::Tensor& w) {
             return at::cat({w, w}).slice(0, 3, 9);
           }},
          {"a view of a view", [](const at::Tensor& w) { return w.unsqueeze(0).transpose(1, 2); }},
          {"made without gradients", [](const at::Tensor& w) {
             torch::NoGradGuard no_grad;
             return w.t();
           }}};
}

// Parameters `p` and `q`, which are views of one tensor or of two tensors.
struct ViewedImpl : torch::nn::Module {
  explicit ViewedImpl(const View& view, bool is_copied, bool has_one_base = false) {
    layer = register_module("layer", torch::nn::Linear(6, 6));
    at::Tensor both = values({2, 6, 6}, 5).clone();
    at::Tensor of_p = has_one_base ? both[0] : values({6, 6}, 1).clone();
    at::Tensor of_q = has_one_base ? both[1] : values({6, 6}, 2).clone();
    p = register_parameter("p", is_copied ? view(of_p).clone() : view(of_p));
    q = register_parameter("q", is_copied ? view(of_q).clone() : view(of_q));
    torch::NoGradGuard no_grad;
    layer->weight.copy_(values({6, 6}, 3));
    layer->bias.copy_(values({6}, 4));
  }
  [[nodiscard]] at::Tensor products(const at::Tensor& x) const {
    return x.matmul(p.view({6, 6}).t()).matmul(q.reshape({6, 6}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return products(torch::tanh(layer(x))).square().mean();
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor p, q;
};
TORCH_MODULE(Viewed);

// A strategy applied to a model: how a step computes gradients, and the handle whose parameters the
// optimizer gets.
struct Trained {
  std::shared_ptr<Handle> handle;
  std::function<at::Tensor(const at::Tensor&)> backward = {};
  std::function<void()> after = {};
};

using Train = std::function<Trained(Viewed& model, const Group& group)>;

template <typename Strategy>
Trained trained(Strategy strategy) {
  return {.handle = std::make_shared<Handle>(std::move(strategy))};
}

// `p` and `q` are in the same stage, because they may share memory.
ParallelPlan plan_of(Viewed model) {
  const StageForward layer = [model](const Tensors& x) mutable {
    return Tensors{model->layer(x[0])};
  };
  const StageForward tanh = [](const Tensors& x) { return Tensors{torch::tanh(x[0])}; };
  const StageForward products = [model](const Tensors& x) {
    return Tensors{model->products(x[0])};
  };
  const StageForward loss = [](const Tensors& x) { return Tensors{x[0].square().mean()}; };
  return {.tensor = {{"layer", Colwise()}},
          .pieces = {{"layer", {"layer"}, layer},
                     {"tanh", {}, tanh},
                     {"products", {"p", "q"}, products},
                     {"loss", {}, loss}},
          .heads = 1,
          .loss = [](const Tensors& outputs, const Tensors&) { return outputs[0]; }};
}

// A mesh with axes of two ranks each; uses step() with pp and backward() without.
Train on_axes(const std::vector<std::string>& names) {
  return [names](Viewed& model, const Group& group) {
    std::vector<MeshAxis> axes;
    for (const std::string& name : names) axes.push_back({name, 2});
    auto handle = std::make_shared<ParallelModel>(
        parallelize(model.ptr(), Mesh(group, axes), plan_of(model)));
    if (names.front() != "pp") return Trained{.handle = handle};
    return Trained{.handle = handle,
                   .backward = [handle](const at::Tensor& x) { return handle->step({x}, {x}); }};
  };
}

Trained by_data_parallel(Viewed& model, const Group& /*group*/) {
  auto parallel = std::make_shared<DataParallel<Viewed>>(
      model, cpu_devices(2), DataParallelOptions{.make_replica = [sizes = model->p.sizes().vec()] {
        return Viewed([&](const at::Tensor& w) { return w.reshape(sizes); }, true).ptr();
      }});
  return {.handle = parallel, .backward = [parallel](const at::Tensor& x) {
            return parallel->backward(
                [](Viewed& replica, const at::Tensor& rows) { return replica->forward(rows); }, x);
          }};
}

std::map<std::string, Train> strategies() {
  std::map<std::string, Train> all = {
      {"tp", on_axes({"tp"})},
      {"cp", on_axes({"cp"})},
      {"dp_tp", on_axes({"dp", "tp"})},
      {"pp_tp", on_axes({"pp", "tp"})},
      {"ddp", [](Viewed& model,
                 const Group& group) { return trained(DistributedDataParallel(model, group)); }},
      {"local_sgd",
       [](Viewed& model, const Group& group) {
         auto local = std::make_shared<LocalSgd>(model, group);
         return Trained{.handle = local, .after = [local] { local->step(); }};
       }},
      {"diloco",
       [](Viewed& model, const Group& group) {
         auto diloco = std::make_shared<DiLoCo>(model, group, DiLoCoOptions{.inner_steps = 2});
         return Trained{.handle = diloco, .after = [diloco] { diloco->step(); }};
       }},
      {"data_parallel", by_data_parallel}};
  for (ShardLevel level : all_levels)
    for (ShardStorage storage : all_storages)
      all[name_of(level) + "_" + name_of(storage)] = [=](Viewed& model, const Group& group) {
        return trained(fully_shard(model, group, {.level = level, .storage = storage}));
      };
  return all;
}

enum class Kind { torch_adamw, torch_adagrad, own_adamw };

std::unique_ptr<torch::optim::Optimizer> made(Kind kind, std::vector<at::Tensor> parameters) {
  if (kind == Kind::torch_adamw) return std::make_unique<torch::optim::AdamW>(parameters, 0.01);
  if (kind == Kind::torch_adagrad) return std::make_unique<torch::optim::Adagrad>(parameters, 0.01);
  return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
}

std::map<std::string, at::Tensor> after_steps(const Train& train, Viewed model, Group group,
                                              Kind kind) {
  Trained run = train(model, group);
  auto optimizer = made(kind, run.handle->parameters());
  for (int step = 0; step < 4; ++step) {
    run.handle->zero_grad();
    const at::Tensor x = values({4, 6}, step);
    if (run.backward) {
      (void)run.backward(x);
    } else {
      model->forward(x).backward();
    }
    optimizer->step();
    if (run.after) run.after();
  }
  return run.handle->state_dict();
}

class ViewParameter : public testing::TestWithParam<std::string> {
 protected:
  static int ranks() { return GetParam().ends_with("_tp") ? 4 : 2; }
  void run(const std::string& what, const View& view, Kind kind, bool has_one_base = false,
           bool is_deferred = false) {
    const auto make = [&](bool is_copied) {
      if (!is_deferred) return Viewed(view, is_copied, has_one_base);
      return deferred([&] { return Viewed(view, is_copied, has_one_base); });
    };
    run_as_threads(ranks(), [&](Group group) {
      const Train train = strategies().at(GetParam());
      const auto expected = after_steps(train, make(true), group, kind);
      const auto found = after_steps(train, make(false), group, kind);
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(at::allclose(found.at(name), tensor, 1e-6, 1e-7)) << what << ": " << name;
    });
  }
};

TEST_P(ViewParameter, TrainsAsItsCopy) {
  for (const auto& [what, view] : views())
    for (Kind kind : {Kind::torch_adamw, Kind::torch_adagrad, Kind::own_adamw})
      run(what, view, kind);
}

TEST_P(ViewParameter, OfOneBaseWithAnotherTrainsAsItsCopy) {
  for (const auto& [what, view] : views())
    if (what != "a part") run(what, view, Kind::torch_adamw, /*has_one_base=*/true);
}

TEST_P(ViewParameter, OfADeferredModelTrainsAsItsCopy) {
  if (GetParam() == "data_parallel") GTEST_SKIP() << "takes no deferred model";
  for (const auto& [what, view] : views())
    run(what, view, Kind::torch_adamw, /*has_one_base=*/false, /*is_deferred=*/true);
}

TEST_P(ViewParameter, OfATensorThatRequiresAGradientIsRefusedByName) {
  run_as_threads(ranks(), [&](Group group) {
    Viewed model([](const at::Tensor& w) { return w.clone().requires_grad_().t(); }, false);
    const std::string text =
        message_of<InvalidArgument>([&] { (void)strategies().at(GetParam())(model, group); });
    expect_words(text, {"p", "leaf", "detach().clone()"});
  });
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, train] : strategies()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ViewParameter, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

TEST(ViewParameterOfOne, DistributedInPlaceTrainsAsItsCopy) {
  for (const auto& [what, view] : views())
    run_as_threads(2, [&, what = what, view = view](Group group) {
      const Mesh mesh(group, {{"tp", 2}});
      const at::Tensor x = values({3, 6}, 7);
      std::vector<at::Tensor> results;
      for (bool is_copied : {true, false}) {
        at::Tensor p = view(values({6, 6}, 1).clone());
        if (is_copied) p = p.clone();
        p.requires_grad_();
        distribute_(p, mesh, {Shard(p.dim() - 1)});
        torch::optim::AdamW adamw(std::vector<at::Tensor>{p}, 0.01);
        for (int step = 0; step < 4; ++step) {
          adamw.zero_grad();
          (p.sin() * p).sum().backward();
          adamw.step();
        }
        results.push_back(full_tensor(p.detach()));
      }
      EXPECT_TRUE(at::allclose(results[0], results[1], 1e-6, 1e-7)) << what;
    });
}

}  // namespace
}  // namespace lockstep
