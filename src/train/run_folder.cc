#include "train/run_folder.h"

#include <lockstep/base/check.h>
#include <lockstep/train/config_file.h>

#include "sys/files.h"

namespace lockstep::train {

namespace fs = std::filesystem;

std::optional<checkpoint::TrainingState> RunFolder::find_state() const {
  std::optional<fs::path> latest = checkpoint::latest_checkpoint(path_);
  if (options_.resume) {
    check_input(latest.has_value(), "--resume: expected a checkpoint in {}, found none",
                path_.string());
    return checkpoint::load_training_state(*latest);
  }
  bool holds_run = latest.has_value() || fs::exists(path_ / "metrics.jsonl") ||
                   fs::exists(path_ / "model.safetensors");
  check_input(!holds_run, "{} holds a run already: go on with --resume, or name another folder",
              path_.string());
  return std::nullopt;
}

void RunFolder::open(std::int64_t resumed_at) {
  sys::make_directories(path_);
  write_config(path_ / "config.toml", options_);
  metrics_.emplace(path_ / "metrics.jsonl", resumed_at);
}

void RunFolder::write_result(const std::string& line) const {
  sys::AtomicFile::write(path_ / "result.txt", line + "\n");
}

void RunFolder::save(const checkpoint::TrainingState& state) {
  checkpoint::save_training_state(path_, state, options_.keep);
}

void RunFolder::export_model(const std::string& name, const checkpoint::NamedTensors& model,
                             const checkpoint::Metadata& metadata) {
  checkpoint::write_safetensors(path_ / (name + ".safetensors"), model, metadata);
}

}  // namespace lockstep::train
