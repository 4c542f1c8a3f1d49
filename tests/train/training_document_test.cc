// docs/reference/run_folder.md lists the fields, entries and files that runs write.
// docs/training.md links the example configurations, whose options are valid.
#include "support/small_bpe.h"
#include "sys/files.h"
#include "train/configuration.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <string>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

std::string page_of_documents(const char* name) {
  return sys::read_file(std::string(LOCKSTEP_SOURCE_DIR "/docs/") + name);
}

// Returns the names in the first column of the table below the line that begins with `heading`.
std::set<std::string> names_in_table(const std::string& document, const std::string& heading) {
  std::set<std::string> names;
  std::istringstream lines(document.substr(document.find("\n" + heading)));
  bool is_table = false;
  for (std::string line; std::getline(lines, line);) {
    if (is_table && !line.starts_with("|")) break;
    is_table = line.starts_with("|");
    std::string cell = is_table ? line.substr(1, line.find('|', 1) - 1) : "";
    for (std::size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
      std::size_t end = cell.find('`', at + 1);
      names.insert(cell.substr(at + 1, end - at - 1));
      at = end;
    }
  }
  return names;
}

TEST(TrainingDocument, ListsWhatARunWrites) {
  test::TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.sample_every = 4;
  options.peak_tflops = 1;
  std::ofstream text(options.data, std::ios::app);
  for (int i = 0; i < 4000; ++i) text << "banana cab\n";
  text.close();
  options.eval_batches = 1;
  run(1, options);
  std::set<std::string> files, fields, entries;
  for (const auto& entry : fs::directory_iterator(options.out)) {
    std::string name = entry.path().filename().string();
    files.insert(name.starts_with("step-") ? "step-00000500/" : name);
  }
  for (const auto& row : metrics_of(options.out))
    for (const auto& [field, value] : row.items()) fields.insert(field);
  options = tiny_mnist(folder);
  options.epochs = 1;
  options.out += "-mnist";
  run(1, options);
  for (const auto& row : metrics_of(options.out))
    for (const auto& [field, value] : row.items()) fields.insert(field);
  options = tiny_gpt(folder);
  test::write_small_bpe(folder.path());
  options.vocabulary = "bpe";
  options.bpe = folder.path();
  options.steps = 1;
  options.out += "-bpe";
  run(1, options);
  options = tiny("llama", folder);
  options.data = folder / "text.txt";
  options.steps = 1;
  options.out += "-llama";
  run(1, options);
  options = tiny("moe", folder);
  options.data = folder / "text.txt";
  options.steps = 1;
  options.out += "-moe";
  run(1, options);
  options = tiny_mlp(folder);
  options.out += "-mlp";
  options.shard = ShardKind::full;
  options.sharding.compute_dtype = at::kHalf;
  run(1, options);
  for (const auto& row : metrics_of(options.out))
    for (const auto& [field, value] : row.items()) fields.insert(field);
  for (const char* file :
       {"out/best.safetensors", "out-mnist/best.safetensors", "out-bpe/model.safetensors",
        "out-llama/model.safetensors", "out-moe/model.safetensors", "out-mlp/model.safetensors"})
    for (const auto& [entry, value] : checkpoint::read_safetensors(folder / file).metadata)
      entries.insert(entry);

  const std::string page = page_of_documents("reference/run_folder.md");
  EXPECT_EQ(names_in_table(page, "## The run folder"), files);
  EXPECT_EQ(names_in_table(page, "## metrics.jsonl"), fields);
  EXPECT_EQ(names_in_table(page, "## What a model file says"), entries);
}

TEST(TrainingDocument, ItsConfigurationsAreTaken) {
  const std::string page = page_of_documents("training.md");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(LOCKSTEP_SOURCE_DIR "/tools")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    std::unique_ptr<Task> gpt = make_task("gpt");
    Task* const tasks[] = {gpt.get()};
    const std::vector<std::string> words{"--config", entry.path(), "--data",
                                         "text",     "--out",      "out"};
    const CommandLine line = parse_command_line("lockstep train", tasks, words);
    for (int ranks : {1, 2, 4, 8}) EXPECT_NO_THROW(check_run(*line.run, ranks)) << entry.path();
    std::string name = "(../tools/" + entry.path().filename().string() + ")";
    EXPECT_NE(page.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace lockstep::train
