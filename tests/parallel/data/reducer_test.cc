// Special cases in backward(): errors, nesting, replaced gradients, changed dtypes.
#include "parallel/data/reducer_support.h"

#include <chrono>
#include <thread>

namespace lockstep {
namespace {

using namespace test;
using namespace std::chrono_literals;

class Reducer : public testing::TestWithParam<BackendRanks> {};

TEST_P(Reducer, AnExceptionOnOneRankReachesTheOthersAndTheNextBackwardWorks) {
  struct Throws : torch::autograd::Function<Throws> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      throw std::runtime_error("boom");
    }
  };
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.bucket_bytes = 40, .first_bucket_bytes = 40});
    auto expected = expected_average(group.size(), [](int) { return "abc"; });
    for (int round = 0; round < 3; ++round) {
      ddp.zero_grad();
      if (group.rank() == group.size() - 1) {
        at::Tensor x =
            Throws::apply(model->layers[0](input(0)));  // c and b get gradients before it throws
        expect_contains(
            message_of<std::runtime_error>([&] { model->forward(x, "bc").sum().backward(); }),
            "boom");
      } else {
        std::string text =
            message_of<ReductionFailed>([&] { model->forward(input(0), "abc").sum().backward(); });
        expect_contains(text, "backward() ended with an exception on 1 of " +
                                  std::to_string(group.size()) + " ranks");
      }
      ddp.zero_grad();
      model->forward(input(group.rank()), "abc").sum().backward();
      expect_gradients(*model, expected);
    }
  });
}

// Computes f(x) without a graph, and its gradients by a nested backward().
struct Recompute : torch::autograd::Function<Recompute> {
  using F = std::function<at::Tensor(at::Tensor)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const F* f) {
    context->saved_data["f"] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(f));
    context->save_for_backward({x});
    return (*f)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* f =
        reinterpret_cast<const F*>(static_cast<std::intptr_t>(context->saved_data["f"].toInt()));
    torch::AutoGradMode on(true);
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    (*f)(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

TEST_P(Reducer, ABackwardInsideABackwardBelongsToItsStep) {
  // `inside` lists the layers that are recomputed; the gradients of the other layers come from the
  // outer backward(). With "abc", the outer backward() computes no gradient; with "a", it ends
  // after the inner one.
  for (std::string inside : {"a", "b", "c", "ab", "bc", "abc"}) {
    for (bool unused : {false, true}) {
      run_group(GetParam().backend, GetParam().size, [&](Group group) {
        Branches model;
        DistributedDataParallel ddp(
            model, group,
            {.bucket_bytes = 40, .first_bucket_bytes = 40, .find_unused_parameters = unused});
        std::vector<Recompute::F> parts;
        for (char name : std::string("abc"))
          parts.push_back(
              [&model, name](at::Tensor x) { return model->forward(x, std::string(1, name)); });
        std::string used = unused ? "ac" : "abc";
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          at::Tensor x = input(group.rank()).requires_grad_();
          for (char name : used) {
            const Recompute::F& part = parts[static_cast<std::size_t>(name - 'a')];
            x = inside.find(name) == std::string::npos ? part(x) : Recompute::apply(x, &part);
          }
          x.sum().backward();
          expect_gradients(*model, expected_average(group.size(), [&](int) { return used; }),
                           inside);
        }
      });
    }
  }
}

TEST_P(Reducer, BackwardMayRunInAnotherThreadAndSeveralTimesOverOneGraph) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    at::Tensor loss = model->forward(input(group.rank()), "abc").sum();
    std::thread([&] { loss.backward({}, /*retain_graph=*/true); }).join();
    auto once = expected_average(group.size(), [](int) { return "abc"; });
    expect_gradients(*model, once);
    loss.backward();
    for (std::size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), once[i] * 2, 1e-6, 1e-6));
  });
}

TEST_P(Reducer, AutogradGradHasNoPartInIt) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    at::Tensor x = input(group.rank()).requires_grad_();
    auto slope = torch::autograd::grad({model->forward(x, "abc").sum()}, {x}, {}, true,
                                       /*create_graph=*/true)[0];
    EXPECT_FALSE(model->layers[0]->weight.grad().defined());
    (model->forward(x, "abc").sum() + slope.square().sum()).backward();  // a gradient penalty
    EXPECT_TRUE(model->layers[0]->weight.grad().defined());
  });
}

TEST_P(Reducer, RefusesCreateGraphButNotInsideNoSync) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    auto loss = [&] { return model->forward(input(group.rank()), "abc").square().sum(); };
    expect_contains(
        message_of<InvalidArgument>([&] { loss().backward({}, true, /*create_graph=*/true); }),
        "create_graph");
    ddp.zero_grad();
    {
      auto scope = ddp.no_sync();
      loss().backward({}, true, /*create_graph=*/true);
      EXPECT_TRUE(model->layers[0]->weight.grad().requires_grad());
    }
    ddp.zero_grad();
    model->forward(input(group.rank()), "abc").sum().backward();
    expect_gradients(*model, expected_average(group.size(), [](int) { return "abc"; }));
  });
}

TEST_P(Reducer, NamesASparseGradient) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    DistributedDataParallel ddp(model, group);
    for (int round = 0; round < 2; ++round) {
      std::string text =
          message_of<ReductionFailed>([&] { model->forward(at::arange(3)).sum().backward(); });
      expect_contains(text, "the gradient of weight is sparse");
      ddp.zero_grad();
    }
  });
}

TEST_P(Reducer, GradientsTheUserSetAreSeen) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    auto backward = [&] { model->forward(input(group.rank()), "abc").sum().backward(); };
    auto once = expected_average(group.size(), [](int) { return "abc"; });
    backward();
    model->layers[0]->weight.mutable_grad().reset();              // set to none
    model->layers[1]->weight.mutable_grad() = at::zeros({3, 3});  // replaced by another tensor
    model->layers[2]->weight.mutable_grad().zero_();
    model->layers[0]->bias.mutable_grad().set_data(at::zeros({3}));    // with replaced memory
    model->layers[1]->bias.mutable_grad() = at::zeros({3, 1}).t()[0];  // other strides, still zeros
    model->layers[2]->bias.mutable_grad().zero_();
    backward();
    for (std::size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(at::equal(model->parameters()[i].grad(), once[i])) << i;
  });
}

TEST_P(Reducer, ModuleZeroGradAndOptimizersZeroGradWorkInBothForms) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    torch::optim::SGD sgd(ddp.parameters(), 0.1);
    auto once = expected_average(group.size(), [](int) { return "abc"; });
    for (bool none : {true, false, true, false}) {
      none ? sgd.zero_grad(none) : model->zero_grad(none);
      model->forward(input(group.rank()), "abc").sum().backward();
      for (std::size_t i = 0; i < once.size(); ++i)
        EXPECT_TRUE(at::equal(model->parameters()[i].grad(), once[i])) << i;
    }
  });
}

TEST_P(Reducer, FollowsAModelToAnotherDtypeAndStrides) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    model->forward(input(group.rank()), "abc").sum().backward();
    model->to(at::kDouble);
    for (auto& parameter : ddp.parameters()) parameter.set_data(parameter.detach().clone());
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      model->forward(input(group.rank()).to(at::kDouble), "abc").sum().backward();
      auto expected = expected_average(group.size(), [](int) { return "abc"; });
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(model->parameters()[i].grad().scalar_type(), at::kDouble);
        EXPECT_TRUE(
            at::allclose(model->parameters()[i].grad(), expected[i].to(at::kDouble), 1e-6, 1e-6));
      }
    }
    model->to(at::kFloat);
    ddp.zero_grad();
    torch::nn::Linear& layer = model->layers[0];
    layer->weight.set_data(layer->weight.detach().t().contiguous().t());
    model->forward(input(group.rank()), "abc").sum().backward();
    EXPECT_EQ(layer->weight.grad().strides(), layer->weight.strides());
    expect_gradients(*model, expected_average(group.size(), [](int) { return "abc"; }));
    // Repeat with gradients whose layout in the buckets differs from the new layout of the
    // parameter.
    layer->weight.set_data(layer->weight.detach().contiguous());
    model->forward(input(group.rank()), "abc").sum().backward();
    auto once = expected_average(group.size(), [](int) { return "abc"; });
    for (std::size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), once[i] * 2, 1e-6, 1e-6)) << i;
  });
}

TEST_P(Reducer, LoadsAnArchiveBetweenSteps) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model, other;
    fill_parameters(*other, 50);
    std::stringstream stream;
    torch::save(other, stream);
    DistributedDataParallel ddp(model, group);
    model->forward(input(group.rank()), "abc").sum().backward();
    ddp.zero_grad();
    torch::load(model, stream);
    model->forward(input(group.rank()), "abc").sum().backward();
    DistributedDataParallel fresh(other, group);
    other->forward(input(group.rank()), "abc").sum().backward();
    expect_gradients(*model, gradients_of(other->parameters()));
  });
}

TEST_P(Reducer, AGradientThatIsSwitchedOnLaterIsAnError) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    model->layers[1]->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, group);
    model->layers[1]->bias.set_requires_grad(true);
    expect_contains(
        message_of<InvalidArgument>([&] { model->forward(input(0), "abc").sum().backward(); }),
        "b.bias");
    model->layers[1]->bias.set_requires_grad(false);
    ddp.zero_grad();
    model->forward(input(0), "abc").sum().backward();
  });
}

TEST_P(Reducer, BuffersFollowRankZeroAfterEachAveragedBackward) {
  for (bool broadcast : {true, false}) {
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      ConvNet model;
      DistributedDataParallel ddp(model, group, {.broadcast_buffers = broadcast});
      for (int step = 0; step < 2; ++step) {
        at::Tensor loss = image_loss(model->forward(values({5, 36}, group.rank())));
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();  // the graph saved running means, so writing them must not disturb it
      }
      at::Tensor mine = model->norm->running_mean.clone();
      at::Tensor root = mine.clone();
      group.broadcast(root).wait();
      EXPECT_EQ(same_bits(mine, root), broadcast || group.is_root());
      EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 2);
    });
  }
}

TEST_P(Reducer, AParameterUsedTwiceIsReducedOnce) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      model->forward(input(group.rank()), "abacab").sum().backward();
      expect_gradients(*model, expected_average(group.size(), [](int) { return "abacab"; }));
    }
  });
}

TEST_P(Reducer, BucketsFollowRankZerosOrderOfReadiness) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.bucket_bytes = 40, .first_bucket_bytes = 40});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      std::string path = group.is_root() ? "cab" : "bca";  // ready in different orders
      model->forward(input(group.rank()), path).sum().backward();
      expect_gradients(*model, expected_average(group.size(), [](int rank) {
        return rank == 0 ? "cab" : "bca";
      }));
    }
    if (group.size() == 1) return;
    // Rank 0's order is b, a, c. Buckets follow this order, each in its own storage, and the first
    // bucket only has room for b.
    EXPECT_NE(model->layers[1]->weight.grad().storage().data(),
              model->layers[0]->weight.grad().storage().data());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Reducer, testing::ValuesIn(usual_ranks()), name_of_ranks);

class ReducerDeadline : public testing::TestWithParam<BackendKind> {};

TEST_P(ReducerDeadline, ARankThatNeverCallsBackwardIsNamed) {
  run_group(GetParam(), 2, [](Group group) {
    Branches model;
    DistributedDataParallel ddp(model, group, {.timeout = 300ms});
    if (group.is_root()) {
      std::string text =
          message_of<Timeout>([&] { model->forward(input(0), "abc").sum().backward(); });
      expect_contains(text, "rank 1");
      expect_contains(text, "bucket 0 (");
    } else {
      std::this_thread::sleep_for(600ms);
      model->forward(input(0), "abc").sum();  // without backward(), no hook fires and nothing fails
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReducerDeadline,
                         testing::Values(BackendKind::local, BackendKind::shm),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace lockstep
