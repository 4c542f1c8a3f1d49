// Runs of `lockstep train` on meshes, and the same runs on one process.
#pragma once

#include "support/messages.h"
#include "support/temporary_folder.h"
#include "train/runs.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include <cctype>
#include <filesystem>
#include <ostream>
#include <string>

namespace lockstep::train {

struct OnMesh {
  std::string mesh;
  int ranks = 1;
  std::string task = "gpt";
  std::string pipeline = "1f1b";
  bool sequence_parallel = false;
  ContextMethod context = ContextMethod::ring;
};

// Converts a text to a valid test name: letters, digits and '_'.
inline std::string as_name(std::string text) {
  for (char& letter : text)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return text;
}

inline std::string name_of(const OnMesh& one) {
  return as_name(one.task + "_" + one.mesh + "_" + one.pipeline);
}

inline void PrintTo(const OnMesh& one, std::ostream* out) { *out << name_of(one); }

inline RunSetup text_run(const test::TemporaryFolder& folder, const std::string& task) {
  test::write_tiny_text(folder / "text.txt");
  RunSetup options = tiny(task, folder);
  options.data = folder / "text.txt";
  options.steps = 6;
  options.layers = 4;
  options.heads = 4;
  options.width = 16;
  options.block = 8;
  options.warmup = 2;
  options.eval_every = 3;
  options.save_every = 3;
  options.batch = 16;
  options.accumulate = 4;
  // The losses that balance experts are computed per micro-batch, which other meshes split
  // differently.
  if (task == "moe") options.accumulate = 1;
  return options;
}

// Sets the mesh and the settings that depend on it.
inline void place(RunSetup& options, const OnMesh& mesh) {
  set_option(options, "mesh", mesh.mesh);
  options.pipeline = mesh.pipeline;
  options.sequence_parallel = mesh.sequence_parallel;
  options.context_method = mesh.context;
}

inline RunSetup on_mesh(RunSetup options, const OnMesh& mesh) {
  options.out += "-" + name_of(mesh);
  place(options, mesh);
  return options;
}

inline void expect_near_rows(const RunSetup& one, const RunSetup& other) {
  auto expected = metrics_of(one.out), found = metrics_of(other.out);
  ASSERT_EQ(expected.size(), found.size()) << other.out;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double loss = expected[i]["loss"].get<double>();
    EXPECT_NEAR(loss, found[i]["loss"].get<double>(), 2e-5 * loss) << other.out << " " << i;
    if (!expected[i].contains("val_loss")) continue;
    const double validation = expected[i]["val_loss"].get<double>();
    EXPECT_NEAR(validation, found[i]["val_loss"].get<double>(), 2e-5 * validation) << other.out;
  }
  EXPECT_LT(distance(one.out, other.out), 1e-4) << other.out;
}

// Expects one line on all ranks, before any file is written.
inline void expect_refused(const RunSetup& options, int ranks, const std::string& expected) {
  test::run_group(test::BackendKind::shm, ranks, [&](Group group) {
    const std::string found =
        test::message_of<CollectiveFailure>([&] { (void)train(options, group); });
    EXPECT_NE(found.find(expected), std::string::npos) << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << found;
    group.barrier().wait();  // the group is still usable
  });
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(options.out) / "metrics.jsonl"));
}

}  // namespace lockstep::train
