// CommitFile: one safetensors file of what a run commits, of which every rank writes its own boxes
// in place.
#pragma once

#include "checkpoint/file_names.h"
#include "checkpoint/file_part.h"
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
  // Collective: which rank writes what. CommonFailure for what cannot be saved.
  CommitFile(std::string name, Group& group, const std::vector<checkpoint::FilePart>& parts);

  // Whether the parts have the places, shapes and dtypes that the plan was made for.
  [[nodiscard]] bool fits(const std::vector<checkpoint::FilePart>& parts) const;
  // Ignored and own tensors are files only where there are some, as in a checkpoint's folder.
  [[nodiscard]] bool is_wanted() const {
    return !plan_.shards.front().entries.empty() || name_ == checkpoint::model_file ||
           name_ == checkpoint::optimizer_file;
  }

  // Local: the file of a buffer, by one rank before the others open it. SystemError.
  void make(int buffer, const std::filesystem::path& folder);
  void open(int buffer, const std::filesystem::path& folder);
  // SharedFile::is_intact() of both buffers.
  [[nodiscard]] bool is_intact() const {
    return std::ranges::all_of(files_, &SharedFile::is_intact);
  }
  // Local: copies this rank's elements there.
  void write(int buffer, const std::vector<checkpoint::FilePart>& parts);

 private:
  std::string name_;
  std::vector<checkpoint::PartDescription> parts_;
  checkpoint::WritePlan plan_;        // with this rank's boxes
  std::vector<std::size_t> part_of_;  // of each box
  std::string header_;
  std::array<SharedFile, commit_buffers> files_;
};

}  // namespace lockstep
