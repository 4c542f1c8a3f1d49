// Files of PyTorch's torch.save(), in and out: a state_dict, or any nest of dicts, lists, tuples,
// tensors, numbers and texts (the zip format, which is torch.save()'s own since PyTorch 1.6).
//
//   c10::IValue saved = lockstep::checkpoint::read_torch_file("model.pt");
//   lockstep::load_state_dict(*model, lockstep::checkpoint::tensors_in(saved));
//
// A value is LibTorch's c10::IValue: a generic dict whose keys are texts or whole numbers, a list,
// a tuple, a tensor, a bool, a whole number, a double, a text, or None. Of what else state_dicts
// have, a dtype, a device and a layout are read as texts ("torch.float32"), torch.Size as a tuple,
// and bytes as a tensor of Byte.
//
// Nothing here is collective and nothing is shared: any thread of any rank may call.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// Writes a file that torch.load(path, weights_only=True) takes, with mmap=True too. Tensors that
// share a storage share it in the file; strides and offsets are kept; requires_grad is not. A
// tensor of a device is copied to the host, and is on the CPU in the file.
//
// The file appears under its name when all of it has reached the disk. InvalidArgument for a value
// of another kind, a text that is no UTF-8, a tensor without values; SystemError when the disk is
// full or the folder cannot be written. `path` is then as before.
void write_torch_file(const std::filesystem::path& path, const c10::IValue& value);

struct TorchReading {
  // Compare the bytes of each record that is read with its checksum, where the file has them.
  bool verify = true;
  // Tensors lie in the file, of which pages come in when they are touched: for files larger than
  // the memory. What is written to such a tensor stays in this process. The file must not become
  // shorter while they live: reading them is a SIGBUS then.
  bool map = false;
};

// Reads what Python wrote by torch.save() of a state_dict, in the zip format, in either byte order.
// The pickle in it is never executed: it may ask for tensors, their storages and the values above,
// and for nothing else. Tensors are on the CPU, whatever device they were saved on, and require no
// gradient; what shared a storage shares it.
//
// BadInput in one line that names the file: what is no such file, also one of PyTorch before 1.6
// and an archive of TorchScript (which LibTorch's torch::save() writes), any other global that the
// pickle asks for, a record that is compressed, missing, of another length or with another
// checksum, and a tensor that reaches beyond its storage. SystemError when it cannot be opened or
// the disk fails.
[[nodiscard]] c10::IValue read_torch_file(const std::filesystem::path& path, TorchReading how = {});

// The tensors of a value by name: the keys and places that lead there, with points between them, as
// "model.fc.weight". What is no tensor is left out. BadInput where two get the same name.
[[nodiscard]] NamedTensors tensors_in(const c10::IValue& value);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
