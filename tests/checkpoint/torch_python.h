// Helpers for the tests of PyTorch's files.
#pragma once

#include "support/python.h"
#include "support/temporary_folder.h"

#include <lockstep/checkpoint/torch_file.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::checkpoint {

using c10::IValue;

inline c10::impl::GenericDict dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

// Fails the test unless every assert of the script holds.
inline void expect_python(const std::string& script, const std::vector<std::string>& arguments) {
  const auto result = test::run_python("import sys, torch\n" + script, arguments);
  EXPECT_EQ(result.exit_code, 0) << result.output << script;
}

inline void expect_equal(const NamedTensors& found, const NamedTensors& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(found.at(name).equal(tensor)) << name;
  }
}

class TorchFile : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::python()) GTEST_SKIP() << test::no_python;
  }
  std::string path(const char* name = "a.pt") const { return (folder_ / name).string(); }
  IValue from_python(const std::string& script, TorchReading how = {}) const {
    expect_python(script, {path()});
    return read_torch_file(path(), how);
  }

  test::TemporaryFolder folder_;
};

}  // namespace lockstep::checkpoint
