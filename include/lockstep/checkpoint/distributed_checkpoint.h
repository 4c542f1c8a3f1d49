// Reads folders that PyTorch's torch.distributed.checkpoint.save() (DCP) wrote, for FSDP2 and
// others: the file .metadata, and one or more __RANK_NUMBER.distcp per writing rank.
//
//   c10::IValue saved = lockstep::checkpoint::read_distributed_checkpoint("step-100");
//   lockstep::load_state_dict(*model, tensors_in(saved.toGenericDict().at("model")));
//
// `lockstep checkpoint convert` converts one to a checkpoint, with the optimizer's state.
#pragma once

#include <lockstep/checkpoint/torch_file.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// Not collective; thread-safe. Returns the whole state_dict that was saved, with each tensor
// assembled from its parts, in the nested dicts and lists that were passed to save(); keys of these
// dicts are strings. Any number of ranks may have written it.
//
// Executes no code, like read_torch_file(). Throws BadInput in one line that names the file if it
// is not such a folder, if a pickle asks for an unknown global, if parts overlap or leave a gap, or
// if a part is missing, of another size or dtype, or compressed by an extension; and in all cases
// in which read_torch_file() does. Throws SystemError if a file cannot be opened or the disk fails.
[[nodiscard]] c10::IValue read_distributed_checkpoint(const std::filesystem::path& folder,
                                                      TorchReading how = {});

// Collective over handle.group(); call between steps. Loads the state_dict saved under `key` into
// the model, regardless of the strategy and ranks of either side. Each rank reads the parts that
// overlap its own, and must see the folder. Throws CollectiveFailure on every rank if
// read_distributed_checkpoint() would refuse the folder, or if a tensor is missing, unknown, or of
// another shape or dtype. In these cases nothing is changed, except if a file of parts is damaged
// or the disk fails.
void load_distributed_model(const std::filesystem::path& folder, Handle& handle,
                            const std::string& key = "model");

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
