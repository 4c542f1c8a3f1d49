#include <lockstep/checkpoint/training_state.h>

#include "checkpoint/file_names.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/random_states.h"
#include "checkpoint/training_json.h"

#include <lockstep/comm/group.h>

namespace lockstep::checkpoint {

TrainingState read_training_state(const std::filesystem::path& folder) {
  return parse_json_text(folder, read_json_text(folder)).state;
}

void verify(const std::filesystem::path& folder) {
  Group alone;
  TrainingState state = read_training_state(folder);
  try {
    for (const char* name : {model_file, optimizer_file, ignored_file})
      if (name != ignored_file || std::filesystem::exists(folder / name))
        PartsReader(alone, folder / name).verify();
  } catch (const CommonFailure& failure) {
    throw BadInput(failure.what());
  }
  (void)read_random_states(folder / random_file, state.ranks);
}

}  // namespace lockstep::checkpoint
