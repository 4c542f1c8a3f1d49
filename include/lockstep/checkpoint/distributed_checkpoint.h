// Folders that PyTorch's torch.distributed.checkpoint.save() wrote (DCP), of FSDP2 and others: the
// file .metadata, and __RANK_NUMBER.distcp of each rank that wrote.
//
//   c10::IValue saved = lockstep::checkpoint::read_distributed_checkpoint("step-100");
//   lockstep::load_state_dict(*model, tensors_in(saved.toGenericDict().at("model")));
//
// `lockstep checkpoint convert` makes a checkpoint of it, with the optimizer's state.
#pragma once

#include <lockstep/checkpoint/torch_file.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// Local; any thread of any rank may call. The whole state_dict that was saved, each tensor put
// together of all its parts, in the nest of dicts and lists that was given to save(); keys of dicts
// are texts there. Any number of ranks may have written it.
//
// No code is executed, as with read_torch_file(). BadInput in one line that names the file: what is
// no such folder, a global that a pickle asks for, parts that overlap or leave a hole, a part that
// is missing, of another size or dtype, or compressed by an extension; and all that
// read_torch_file() refuses. SystemError when a file cannot be opened or the disk fails.
[[nodiscard]] c10::IValue read_distributed_checkpoint(const std::filesystem::path& folder,
                                                      TorchReading how = {});

// Collective over handle.group(), between steps: gives the model the values of the state_dict that
// was saved under `key`, whatever strategy and ranks wrote it and whatever these are. Each rank
// reads the parts that its own lie in, and must see the folder. CommonFailure on every rank for
// what read_distributed_checkpoint() refuses, and for a tensor that is missing, unknown, of another
// shape or dtype; then nothing was changed, but where a file of parts is damaged or the disk fails.
void load_distributed_model(const std::filesystem::path& folder, Handle& handle,
                            const std::string& key = "model");

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
