#include <lockstep/train/options.h>

#include <lockstep/base/error.h>

#include "train/messages.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::train {
namespace {

TEST(Options, EveryTaskHasGoodDefaults) {
  for (const char* task : {"gpt", "mnist", "mlp"}) {
    Options options = default_options(task);
    EXPECT_EQ(options.task, task);
    EXPECT_TRUE((options.steps > 0) != (options.epochs > 0));
    options.out = "out";
    options.data = "data";
    EXPECT_NO_THROW(check_options(options, 1));
    EXPECT_NO_THROW(check_options(options, 4));
  }
  EXPECT_EQ(test::message_of([] { (void)default_options("cifar"); }),
            "unknown task 'cifar'; known: gpt, mnist, mlp");
}

TEST(Options, NamesAreUniqueAndEveryValueComesBackAsText) {
  std::set<std::string_view> names;
  Options defaults = default_options("gpt");
  for (const OptionRow& row : option_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    if (row.name == "steps" || row.name == "epochs") continue;  // setting one clears the other
    Options options = defaults;
    set_option(options, row, option_text(options, row).empty() ? "x" : option_text(options, row));
    if (!option_text(defaults, row).empty())
      EXPECT_EQ(option_text(options, row), option_text(defaults, row)) << row.name;
  }
}

TEST(Options, AnUnknownNameSuggestsTheNearest) {
  EXPECT_EQ(option_row("layers", "gpt").name, "layers");
  std::string message = test::message_of([] { (void)option_row("laers", "gpt"); });
  EXPECT_NE(message.find("laers"), std::string::npos) << message;
  EXPECT_NE(message.find("'layers'"), std::string::npos) << message;
  EXPECT_EQ(test::message_of([] { (void)option_row("layers", "mnist"); }),
            "layers is an option of gpt and mlp, not of mnist");
}

TEST(Options, ValuesAreChecked) {
  auto set = [](const char* name, const char* value) {
    return test::message_of([&] {
      Options options = default_options("gpt");
      set_option(options, option_row(name, "gpt"), value);
    });
  };
  EXPECT_EQ(set("batch", "24"), "nothing was thrown");
  EXPECT_EQ(set("lr", "1e-3"), "nothing was thrown");
  EXPECT_EQ(set("batch", "0"), "batch: expected a whole number from 1 to 16777216, found '0'");
  EXPECT_EQ(set("steps", "-5"), "steps: expected a whole number of at least 1, found '-5'");
  for (const char* bad : {"", "12x", "1.5", "1e3", "99999999999999999999"})
    EXPECT_NE(set("steps", bad), "nothing was thrown") << bad;
  for (const char* bad : {"", "x", "nan", "-1", "inf"})
    EXPECT_NE(set("lr", bad), "nothing was thrown") << bad;
  EXPECT_EQ(set("optimizer", "adam"), "optimizer: unknown value 'adam'; did you mean 'adamw'?");
  EXPECT_EQ(set("resume", "yes"), "resume: expected true or false, found 'yes'");
}

TEST(Options, StepsAndEpochsReplaceEachOther) {
  Options options = default_options("mnist");
  set_option(options, option_row("steps", "mnist"), "100");
  EXPECT_EQ(options.epochs, 0);
  set_option(options, option_row("epochs", "mnist"), "3");
  EXPECT_EQ(options.steps, 0);
}

TEST(Options, ABatchThatCannotBeSplitNamesBothNumbers) {
  Options options = default_options("gpt");
  options.out = options.data = "x";
  EXPECT_NO_THROW(check_options(options, 4));
  std::string message = test::message_of([&] { check_options(options, 5); });
  EXPECT_NE(message.find("12"), std::string::npos) << message;
  EXPECT_NE(message.find("5 ranks"), std::string::npos) << message;
  options.accumulate = 2;
  EXPECT_NO_THROW(check_options(options, 3));
  EXPECT_THROW(check_options(options, 4), BadInput);
}

TEST(Options, WhatDoesNotFitTogetherIsRefused) {
  auto refused = [](auto change) {
    Options options = default_options("gpt");
    options.out = options.data = "x";
    change(options);
    return test::message_of([&] { check_options(options, 1); });
  };
  EXPECT_EQ(refused([](Options& options) { options.heads = 3; }),
            "--width 128 is not a multiple of --heads 3");
  EXPECT_EQ(refused([](Options& options) { options.min_lr = 1; }),
            "--min-lr 1 is above --lr 0.001");
  EXPECT_NE(refused([](Options& options) { options.out = ""; }).find("--out"), std::string::npos);
  EXPECT_NE(refused([](Options& options) { options.data = ""; }).find("--data"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::train
