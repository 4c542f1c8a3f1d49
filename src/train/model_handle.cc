#include "train/model_handle.h"

namespace lockstep::train {

std::unique_ptr<ModelHandle> make_handle(const Options& options, const Task& task,
                                         const Group& group) {
  if (options.shard == "none") return make_data_parallel_handle(task, group);
  return make_sharded_handle(options, task, group);
}

}  // namespace lockstep::train
