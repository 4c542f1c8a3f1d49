// What goes wrong around an update that the ranks of a host divide: one line, never another number.
#include "optim/shared_update.h"

#include "parallel/data/shared_update_support.h"

#include <lockstep/base/error.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <ostream>
#include <thread>
#include <tuple>

namespace lockstep {
namespace {

using namespace test;

class SharedUpdateErrors : public testing::TestWithParam<EngineRanks> {};

TEST_P(SharedUpdateErrors, OfAStateThatWasWrittenTo) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    SharedTraining found(group, by_adamw(), true);
    found.step(0);
    auto& state = *found.optimizer->state().at(found.table->weights[2].unsafeGetTensorImpl());
    auto& adam = dynamic_cast<torch::optim::AdamWParamState&>(state);
    found.backward(1);
    at::Tensor fresh = adam.exp_avg() * 0.5;
    group.barrier().wait();
    {
      at::NoGradGuard no_grad;
      adam.exp_avg().mul_(0.5);
    }
    std::string text = message_of<InvalidArgument>([&] { found.optimizer->step(); });
    expect_contains(text, "AdamW: the state of parameter 0 of group 0 was written to");
    group.barrier().wait();
  });
}

TEST_P(SharedUpdateErrors, OfRanksThatUpdateDifferently) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    SharedTraining found(group, by_adamw(), true);
    found.step(0);
    found.backward(1);
    found.optimizer->param_groups()[0].options().set_lr(group.is_root() ? 0.5 : 0.25);
    std::string text = message_of<Mismatch>([&] { found.optimizer->step(); });
    expect_contains(text, "AdamW updates group 0: lr 0.5");
    expect_contains(text, "AdamW updates group 0: lr 0.25");
  });
}

TEST_P(SharedUpdateErrors, OfOptionsThatDoNotFit) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    struct Nowhere final : optim::StateMemory {
      at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override {
        return at::zeros({count}, dtype);
      }
      [[nodiscard]] bool holds(const at::Tensor&) const override { return false; }
      void will_use(const at::Tensor&) noexcept override {}
      void has_used(const at::Tensor&) noexcept override {}
    };
    SharedTraining found(group, by_adamw(), true);
    expect_contains(message_of<InvalidArgument>([&] {
                      optim::AdamW both(found.ddp.parameters(), {},
                                        {.memory = std::make_shared<Nowhere>(),
                                         .shared = found.ddp.shared_update()});
                    }),
                    "the state lies in `memory` or is shared by ranks (`shared`), not both");
    found.backward(0);
    { DistributedDataParallel gone = std::move(found.ddp); }
    expect_contains(message_of<InvalidArgument>([&] { found.optimizer->step(); }),
                    "the handle that averages their gradients has gone");
  });
}

// A rank that lets another one wait for it, and what that is told.
struct Fault {
  std::string name;
  std::function<void(SharedTraining&, int rank)> after_backward;
  std::string expected;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class SharedUpdateFaults : public testing::TestWithParam<std::tuple<EngineRanks, Fault>> {};

// One line on every other rank, and on the faulty one where it goes on. None waits for ever, none
// has another model without being told.
TEST_P(SharedUpdateFaults, AreOneLineOnTheOtherRanks) {
  const auto& [ranks, fault] = GetParam();
  run_group(ranks.engine, ranks.size, [&](Group group) {
    SharedTraining found(group, by_adamw(), true);
    found.step(0);
    const std::string text = message_of<Error>([&] {
      found.backward(1);
      if (group.rank() == 1) {
        fault.after_backward(found, group.rank());
      } else {
        found.optimizer->step();
      }
      for (int step = 2; step < 4; ++step) found.step(step);
    });
    if (text != "left") expect_contains(text, fault.expected);
  });
}

const std::vector<Fault> faults = {
    {"LeavesBetweenBackwardAndStep", [](SharedTraining&, int) { throw Error("left"); },
     "left in order without taking part in barrier"},
    {"SkipsAStep", [](SharedTraining&, int) {}, "AdamW updates group 0"},
    {"StepsTwice",
     [](SharedTraining& found, int) {
       found.optimizer->step();
       found.optimizer->step();
     },
     "AdamW updates group 0"},
    {"ForgetsToShare",
     [](SharedTraining& found, int) { by_adamw()(found.ddp.parameters(), {})->step(); },
     "AdamW updates group 0"}};

INSTANTIATE_TEST_SUITE_P(All, SharedUpdateFaults,
                         testing::Combine(testing::Values(EngineRanks{Engine::local, 3},
                                                          EngineRanks{Engine::shm, 2}),
                                          testing::ValuesIn(faults)),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "On" +
                                  std::string(name_of(std::get<0>(info.param).engine));
                         });

TEST_P(SharedUpdateErrors, OfAParameterThatIsFrozenLater) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    SharedTraining found(group, by_adamw(), true);
    found.step(0);
    found.table->weights[2].requires_grad_(false);
    const std::string text = message_of<Error>([&] { found.step(1); });
    expect_contains(text, "backward() gave no gradient for w2");
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(All, SharedUpdateErrors,
                         testing::Values(EngineRanks{Engine::local, 3},
                                         EngineRanks{Engine::shm, 2}),
                         name_of_ranks);

// On every rank at once: each is given back what it kept, and updates all of it from then on.
TEST(SharedUpdate, WhereThereIsNoRoomEachRankKeepsItsState) {
  run_group(Engine::shm, 2, [](Group group) {
    SharedTraining found(group, by_adamw(), true), expected(group, by_adamw(), false);
    // Their buckets are laid out for good by then, and have room after that.
    for (int step = 0; step < 2; ++step)
      for (SharedTraining* one : {&found, &expected}) one->backward(step);
    std::optional<at::Tensor> hole = group.empty_node_shared({300 << 10}, at::kByte);
    std::vector<at::Tensor> full;
    for (std::int64_t bytes = std::int64_t{64} << 20; bytes >= (std::int64_t{64} << 10);
         bytes /= 2) {
      try {
        while (true) full.push_back(group.empty_node_shared({bytes}, at::kByte));
      } catch (const BadInput&) {
        continue;
      }
    }
    hole.reset();
    for (int step = 0; step < 3; ++step) {
      for (SharedTraining* one : {&found, &expected}) one->step(step);
      expect_same_training(found, expected, "without room, step " + std::to_string(step));
      if (step == 0) full.clear();  // what is free later changes nothing
    }
  });
}

// At any instruction: also where it has updated its part, and not given it to the others yet.
TEST(SharedUpdate, ARankThatIsKilledMeanwhileIsNamedByTheOthers) {
  for (int microseconds : {300, 1000, 4000}) {
    RankRendezvous place(Engine::shm, 2);
    RankProcesses ranks(2, [&](int rank) {
      SharedTraining found(place.join(rank), by_adamw(), true);
      found.step(0);
      std::optional<std::jthread> killer;
      if (rank == 1)
        killer.emplace([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
          std::raise(SIGKILL);
        });
      expect_contains(message_of<PeerLost>([&] {
                        while (true) found.optimizer->step();
                      }),
                      "rank 1");
    });
    EXPECT_EQ(ranks.wait(1, rank_limit).signal, SIGKILL);
    EXPECT_TRUE(ranks.wait(0, rank_limit).ok());
  }
}

}  // namespace
}  // namespace lockstep
