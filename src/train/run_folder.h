// The folder of a run, as the one rank that writes it sees it.
#pragma once

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/options.h>

#include <filesystem>
#include <optional>

namespace lockstep::train {

class RunFolder {
 public:
  explicit RunFolder(const Options& options) : options_(options), path_(options.out) {}

  // The newest checkpoint when the run is to go on, nothing when it begins. Changes nothing. Throws
  // BadInput when a run would be overwritten, or there is none to go on with.
  [[nodiscard]] std::optional<checkpoint::TrainingState> find_state() const;
  // Makes the folder, writes config.toml and opens metrics.jsonl behind step `resumed_at`.
  void open(std::int64_t resumed_at);

  void append(const MetricsRow& row) { metrics_->append(row); }
  void save(const checkpoint::TrainingState& state);
  // result.txt: the run's last line, for scripts.
  void write_result(const std::string& line) const;
  [[nodiscard]] std::filesystem::path best_file() const { return path_ / "best.safetensors"; }
  // model.safetensors or best.safetensors.
  void export_model(const std::string& name, const checkpoint::NamedTensors& model,
                    const checkpoint::Metadata& metadata);

 private:
  const Options options_;
  std::filesystem::path path_;
  std::optional<MetricsFile> metrics_;
};

}  // namespace lockstep::train
