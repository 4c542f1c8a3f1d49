// Folders that PyTorch's torch.distributed.checkpoint.save() wrote (DCP), of FSDP2 and others: the
// file .metadata, and __RANK_NUMBER.distcp of each rank that wrote.
//
//   c10::IValue saved = lockstep::checkpoint::read_distributed_checkpoint("step-100");
//   lockstep::load_state_dict(*model, tensors_in(saved.toGenericDict().at("model")));
//
// `lockstep checkpoint convert` makes a file of it that checkpoint::load_model() reads by parts.
// Local; any thread of any rank may call.
#pragma once

#include <lockstep/checkpoint/torch_file.h>

#include <ATen/core/ivalue.h>

#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// The whole state_dict that was saved, each tensor put together of all its parts, in the nest of
// dicts and lists that was given to save(); keys of dicts are texts there. Any number of ranks may
// have written it.
//
// No code is executed, as with read_torch_file(). BadInput in one line that names the file: what is
// no such folder, a global that a pickle asks for, parts that overlap or leave a hole, a part that
// is missing, of another size or dtype, or compressed by an extension; and all that
// read_torch_file() refuses. SystemError when a file cannot be opened or the disk fails.
[[nodiscard]] c10::IValue read_distributed_checkpoint(const std::filesystem::path& folder,
                                                      TorchReading how = {});

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
