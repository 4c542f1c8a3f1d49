#include <lockstep/train/settings.h>

#include <lockstep/base/error.h>

#include "base/format.h"
#include "train/messages.h"
#include "train/run_setup.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

TEST(Settings, EveryTaskHasGoodDefaults) {
  for (const std::unique_ptr<Task>& task : known_tasks()) {
    RunSetup setup(task->name());
    EXPECT_TRUE((setup.steps > 0) != (setup.epochs > 0));
    setup.out = "out";
    if (setup.task != "mlp") setup.data = "data";
    EXPECT_NO_THROW(check_run(setup, 1)) << setup.task;
    EXPECT_NO_THROW(check_run(setup, 4)) << setup.task;
  }
  EXPECT_EQ(test::message_of([] { (void)make_task("imagenet"); }),
            "unknown task 'imagenet'; known: gpt, llama, moe, mnist, cifar, mlp");
}

TEST(Settings, EveryValueComesBackAsText) {
  for (const std::unique_ptr<Task>& task : known_tasks()) {
    Configured defaults{RunSetup(task->name())}, made{RunSetup(task->name())};
    for (const Settings::Entry& entry : defaults.all.settings().entries()) {
      if (!Settings::is_given(entry)) continue;
      const std::string text = Settings::text_of(entry);
      made.all.settings().set(entry.name, text);
      EXPECT_EQ(made.all.settings().text(entry.name), text) << entry.name;
    }
  }
}

TEST(Settings, ANameIsThereOnce) {
  Settings settings("mine");
  std::int64_t one = 1;
  double other = 2;
  settings.add({.name = "width"}, one);
  EXPECT_NE(test::message_of([&] {
              settings.add({.name = "width"}, other);
            }).find("'width' is there already"),
            std::string::npos);
  for (const char* name : {"", "Width", "a width", "a_b"})
    EXPECT_THROW(settings.add({.name = name}, other), InvalidArgument) << name;
}

TEST(Settings, AnUnknownNameSuggestsTheNearest) {
  Configured gpt{RunSetup("gpt")}, mnist{RunSetup("mnist")};
  EXPECT_EQ(gpt.all.settings().entry("layers").name, "layers");
  std::string message = test::message_of([&] { (void)gpt.all.settings().entry("laers"); });
  EXPECT_NE(message.find("laers"), std::string::npos) << message;
  EXPECT_NE(message.find("'layers'"), std::string::npos) << message;
  for (const char* other : {"gpt", "mlp"}) mnist.all.settings().add_elsewhere("layers", other);
  EXPECT_EQ(test::message_of([&] { (void)mnist.all.settings().entry("layers"); }),
            "layers is an option of gpt and mlp, not of mnist");
}

TEST(Settings, ValuesAreChecked) {
  auto set = [](const char* name, const char* value) {
    return test::message_of([&] { Configured(RunSetup("gpt")).all.settings().set(name, value); });
  };
  EXPECT_EQ(set("batch", "24"), "nothing was thrown");
  EXPECT_EQ(set("lr", "1e-3"), "nothing was thrown");
  EXPECT_EQ(set("batch", "0"), "batch: expected an integer from 1 to 16777216, found '0'");
  EXPECT_EQ(set("steps", "-5"), "steps: expected an integer of at least 1, found '-5'");
  for (const char* large : {"2000000000000000", "99999999999999999999"})
    EXPECT_EQ(set("steps", large), formatted("steps: expected an integer from 1 to "
                                             "1000000000000000, found '{}'",
                                             large));
  EXPECT_EQ(set("clip", "1e999"),
            "clip: expected a number from 0 to 1000000000000000, found '1e999'");
  // Otherwise the product with the steps of an epoch might be no number of steps.
  EXPECT_EQ(set("epochs", "9223372036854775807"),
            "epochs: expected an integer from 1 to 1000000000, found '9223372036854775807'");
  for (const char* bad : {"", "12x", "1.5", "1e3", "99999999999999999999"})
    EXPECT_NE(set("steps", bad), "nothing was thrown") << bad;
  for (const char* bad : {"", "x", "nan", "-1", "inf"})
    EXPECT_NE(set("lr", bad), "nothing was thrown") << bad;
  EXPECT_EQ(set("optimizer", "adam"), "optimizer: unknown value 'adam'; did you mean 'adamw'?");
  EXPECT_EQ(set("precision", "fp8"), "precision: unknown value 'fp8'; known: fp32, bf16, fp16");
  EXPECT_EQ(set("resume", "yes"), "resume: expected true or false, found 'yes'");
  EXPECT_EQ(set("prefetch", "-1"), "prefetch: expected an integer from 0 to 1000, found '-1'");
}

enum class Shape { round, square };
constexpr std::array<Named<Shape>, 2> names_of(Shape) {
  return {{{"round", Shape::round}, {"square", Shape::square}}};
}

TEST(Settings, EnumsAndWholeNumbersOfAnySizeAreVariables) {
  Settings settings("mine");
  Shape shape = Shape::round;
  int count = 3;
  std::optional<int> level;
  settings.add({.name = "shape"}, shape);
  settings.add({.name = "count"}, count);
  settings.add({.name = "level"}, in_words<std::optional<int>>({{"none", {}}, {"one", 1}}, level));
  for (const auto& [name, text] :
       {std::pair("shape", "square"), std::pair("count", "0"), std::pair("level", "one")})
    settings.set(name, text);
  EXPECT_EQ(shape, Shape::square);
  EXPECT_EQ(word_of(shape), "square");
  EXPECT_EQ(count, 0);
  EXPECT_EQ(level, 1);
  settings.set("level", "none");
  EXPECT_EQ(level, std::nullopt);
  EXPECT_EQ(settings.text("shape"), "square");
  EXPECT_EQ(settings.entry("shape").standard, "round");
  const auto refused = [&](const char* name, const char* text) {
    return test::message_of([&] { settings.set(name, text); });
  };
  EXPECT_EQ(refused("shape", "sqare"), "shape: unknown value 'sqare'; did you mean 'square'?");
  EXPECT_EQ(refused("count", "3000000000"),
            "count: expected an integer from 0 to 2147483647, found '3000000000'");
  EXPECT_EQ(shape, Shape::square);
  level = 7;
  EXPECT_EQ(
      test::message_of([&] { (void)settings.text("level"); }),
      "level: expected a value that one of the words none, one stands for, found another one");
}

// Checks a setting with these needs, next to settings of each kind.
struct Needing {
  explicit Needing(std::vector<std::string> needs) {
    settings.add({.name = "given", .needs = std::move(needs)}, given);
    settings.add({.name = "shape"}, shape);
    settings.add({.name = "is-large"}, is_large);
    settings.add({.name = "count"}, count);
    settings.add({.name = "axes", .value_name = "AXES"}, axes);
    given = 2;
  }
  [[nodiscard]] std::string lacks() const {
    return test::message_of([&] { settings.check_needs(); });
  }

  Settings settings;
  std::int64_t given = 1, count = 0;
  Shape shape = Shape::round;
  bool is_large = false;
  std::string axes;
};

TEST(Settings, WhatASettingNeedsIsCheckedWhereItIsNotTheDefault) {
  const std::string fits = "nothing was thrown";
  Needing shape({"shape"});
  EXPECT_EQ(shape.lacks(), "--given 2 needs --shape square, found --shape round");
  shape.given = 1;
  EXPECT_EQ(shape.lacks(), fits);
  shape.given = 2;
  shape.shape = Shape::square;
  EXPECT_EQ(shape.lacks(), fits);
  Needing flag({"is-large"});
  EXPECT_EQ(flag.lacks(), "--given 2 needs --is-large");
  flag.is_large = true;
  EXPECT_EQ(flag.lacks(), fits);
  Needing number({"count"});
  EXPECT_EQ(number.lacks(), "--given 2 needs --count N");
  Needing word({"axes tp=N|pp"});
  EXPECT_EQ(word.lacks(), "--given 2 needs --axes tp=N or pp, found no --axes");
  word.axes = "dp=2,http=4";
  EXPECT_EQ(word.lacks(), "--given 2 needs --axes tp=N or pp, found --axes dp=2,http=4");
  for (const char* axes : {"dp=2,tp=4", "tp=1", "pp=2"}) {
    word.axes = axes;
    EXPECT_EQ(word.lacks(), fits) << axes;
  }
  Needing alone({"no count", "no is-large"});
  EXPECT_EQ(alone.lacks(), fits);
  alone.is_large = true;
  EXPECT_EQ(alone.lacks(), "give --given 2 or --is-large, not both");
  alone.count = 4;
  EXPECT_EQ(alone.lacks(), "give --given 2 or --count 4, not both");
}

TEST(Settings, NeedsOfTheTrainersOptionsNameOptionsThatThereAre) {
  const std::unique_ptr<Task> task = make_task("gpt");
  Options options;
  Settings settings;
  declare_options(settings, options, *task);
  int needs = 0;
  for (const Settings::Entry& entry : settings.entries())
    for (std::string need : entry.needs) {
      if (need.starts_with("no ")) need = need.substr(3);
      EXPECT_NO_THROW((void)settings.entry(need.substr(0, need.find(' ')))) << entry.name;
      ++needs;
    }
  EXPECT_GT(needs, 50);
}

TEST(Settings, StepsAndEpochsReplaceEachOther) {
  Configured mnist{RunSetup("mnist")};
  mnist.all.settings().set("steps", "100");
  EXPECT_EQ(mnist.all.options.epochs, 0);
  mnist.all.settings().set("epochs", "3");
  EXPECT_EQ(mnist.all.options.steps, 0);
}

// A task with an option that has the name of one of the trainer's options.
class Clashing : public Task {
 public:
  explicit Clashing(std::string option) : option_(std::move(option)) {}
  [[nodiscard]] std::string name() const override { return "clashing"; }
  void declare(Settings& settings) override { settings.add({.name = option_}, value_); }
  void load(const Options&, const Group&) override {}
  [[nodiscard]] std::shared_ptr<torch::nn::Module> make_model() override { return {}; }
  [[nodiscard]] std::int64_t steps_per_epoch() const override { return 1; }
  [[nodiscard]] Batch batch(std::int64_t) override { return {}; }
  [[nodiscard]] at::Tensor loss(const Batch&) override { return {}; }
  [[nodiscard]] std::int64_t validation_samples() const override { return 0; }
  [[nodiscard]] Batch validation(std::span<const std::size_t>) override { return {}; }

 private:
  std::string option_;
  std::int64_t value_ = 1;
};

TEST(Settings, ATaskCannotTakeTheTrainersNames) {
  for (const char* name : {"batch", "lr", "mesh", "config", "task", "step"}) {
    Clashing task(name);
    EXPECT_THROW(Configuration(task, {}), InvalidArgument) << name;
  }
  Clashing task("hidden");
  EXPECT_EQ(Configuration(task, {}).kept().at("hidden"), "1");
}

TEST(CheckRun, ABatchThatCannotBeSplitNamesBothNumbers) {
  RunSetup options("gpt");
  options.out = options.data = "x";
  EXPECT_NO_THROW(check_run(options, 4));
  std::string message = test::message_of([&] { check_run(options, 5); });
  EXPECT_NE(message.find("12"), std::string::npos) << message;
  EXPECT_NE(message.find("5 ranks"), std::string::npos) << message;
  options.accumulate = 2;
  EXPECT_NO_THROW(check_run(options, 3));
  EXPECT_THROW(check_run(options, 4), BadInput);
}

TEST(CheckRun, WhatDoesNotFitTogetherIsRefused) {
  auto refused = [](auto change) {
    RunSetup options("gpt");
    options.out = options.data = "x";
    change(options);
    return test::message_of([&] { check_run(options, 1); });
  };
  EXPECT_EQ(refused([](RunSetup& options) { options.heads = 3; }),
            "--width 128 is not a multiple of --heads 3");
  EXPECT_EQ(refused([](RunSetup& options) { options.min_lr = 1; }),
            "--min-lr 1 is above --lr 0.001");
  EXPECT_EQ(refused([](RunSetup& options) {
              options.min_lr = 1;
              options.schedule = ScheduleKind::constant;  // does not end at min_lr
            }),
            "nothing was thrown");
  EXPECT_NE(refused([](RunSetup& options) { options.out = ""; }).find("--out"), std::string::npos);
  EXPECT_NE(refused([](RunSetup& options) { options.data = ""; }).find("--data"),
            std::string::npos);
  EXPECT_EQ(refused([](RunSetup& options) { options.epochs = 2; }),
            "give --steps or --epochs: found 2000 and 2");
  EXPECT_EQ(refused([](RunSetup& options) { options.grace = std::chrono::seconds(-5); }),
            "--grace -5s: expected at least 0s");
  EXPECT_EQ(refused([](RunSetup& options) { options.sharding.compute_dtype = at::kDouble; }),
            "precision: expected a value that one of the words fp32, bf16, fp16 stands for, found "
            "another one");
  EXPECT_EQ(refused([](RunSetup& options) {
              options.sharding.compute_dtype = options.sharding.reduce_dtype = at::kFloat;
            }),
            "nothing was thrown");
}

}  // namespace
}  // namespace lockstep::train
