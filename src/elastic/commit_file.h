// CommitFile: one safetensors file of a run's commit. Every rank writes its own boxes in place.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/folders.h"
#include "checkpoint/write_plan.h"
#include "elastic/commit_files.h"

#include <lockstep/comm/group.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

class CommitFile {
 public:
  // Plans which rank writes which boxes. Collective. Throws CommonFailure for parts that cannot be
  // saved.
  CommitFile(std::string name, Group& group, const std::vector<checkpoint::FilePart>& parts);

  // Returns true if the parts have the positions, shapes and dtypes for which the plan was made.
  [[nodiscard]] bool fits(const std::vector<checkpoint::FilePart>& parts) const;
  // As in a checkpoint folder, ignored tensors and own tensors have files only if there are any.
  [[nodiscard]] bool is_wanted() const {
    return !plan_.shards.front().entries.empty() || name_ == checkpoint::model_file ||
           name_ == checkpoint::optimizer_file;
  }

  // Local. make() creates the file of a buffer; one rank calls it before the others open() the
  // file. Throws SystemError.
  void make(int buffer, const std::filesystem::path& folder);
  void open(int buffer, const std::filesystem::path& folder);
  // Checks SharedFile::is_intact() of both buffers.
  [[nodiscard]] bool is_intact() const {
    return std::ranges::all_of(files_, &SharedFile::is_intact);
  }
  // Copies this rank's elements into the buffer. Local.
  void write(int buffer, const std::vector<checkpoint::FilePart>& parts);

 private:
  std::string name_;
  std::vector<Part> parts_;
  checkpoint::WritePlan plan_;        // with this rank's boxes
  std::vector<std::size_t> part_of_;  // of each box
  std::string header_;
  std::array<SharedFile, commit_buffers> files_;
};

}  // namespace lockstep
