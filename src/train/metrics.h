// metrics.jsonl: what a run measured, one JSON object a line, for programs to read while it goes on
// and afterwards.
//
//   {"step":250,"epoch":0,"loss":2.31,"val_loss":2.29,"lr":0.00099,"samples_per_second":391.2,
//    "tokens_per_second":25036.8,"resident_bytes":431751168,"model_bytes":12910592,
//    "exposed_seconds":0.0031,"forward_seconds":0.0102,"backward_seconds":0.0214,
//    "update_seconds":0.0017,"seconds":8.1}                             (on one line)
//
// `step` counts updates that were made; a row without an evaluation has no val_loss and no
// accuracy, one without a sample no sample. Steps rise from line to line, also over a resume.
// docs/training.md explains each field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct MetricsRow {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  double loss = 0;  // of the step's global batch, before its update
  std::optional<double> val_loss;
  std::optional<double> accuracy;  // share of validation samples, 0 to 1
  // Where val_loss is of some batches of the validation data only: of how many.
  std::optional<std::int64_t> eval_batches;
  double lr = 0;
  std::optional<double> loss_scale;         // of float16
  double samples_per_second = 0;            // over all ranks, since the last row
  std::optional<double> tokens_per_second;  // gpt
  // Of the rank that has the most each.
  // Of its process, read once a second at most; memory shared with others counts in parts.
  std::int64_t resident_bytes = 0;
  std::int64_t model_bytes = 0;  // of parameters, gradients and optimizer state
  double exposed_seconds = 0;    // a step, waiting for communication, since the last row
  // The same, of the strategies that measure them: see StepTiming (lockstep/parallel/handle.h).
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
  double seconds = 0;                 // spent in the run so far, all resumes together
  std::optional<std::string> sample;  // what the model made up, valid UTF-8
};

// The row without the line's end. Not-a-number becomes null.
[[nodiscard]] std::string metrics_line(const MetricsRow& row);

// Used by one rank. Throws SystemError when the disk refuses.
class MetricsFile {
 public:
  // Goes on after step `resumed_at`: rows of later steps, which the resumed run makes again, and a
  // torn last line are removed first. 0 begins an empty file.
  MetricsFile(std::filesystem::path path, std::int64_t resumed_at);

  // Appends one whole line; readers never see a part of it.
  void append(const MetricsRow& row);

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::train

#pragma GCC visibility pop
