#include <lockstep/checkpoint/training_state.h>

#include "checkpoint/layout_json.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>

namespace lockstep::checkpoint {

TrainingState read_training_state(const std::filesystem::path& folder) {
  return parse_json_text(folder, read_json_text(folder)).state;
}

void verify(const std::filesystem::path& folder) {
  (void)read_training_state(folder);
  Group alone;
  try {
    verify(alone, folder);
  } catch (const CommonFailure& failure) {
    throw BadInput(failure.what());
  }
}

}  // namespace lockstep::checkpoint
