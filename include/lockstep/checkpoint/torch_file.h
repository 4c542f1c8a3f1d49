// Reads and writes files of PyTorch's torch.save(): a state_dict, or any nested dicts, lists,
// tuples, tensors, numbers and strings (the zip format, torch.save()'s default since PyTorch 1.6).
//
//   c10::IValue saved = lockstep::checkpoint::read_torch_file("model.pt");
//   lockstep::load_state_dict(*model, lockstep::checkpoint::tensors_in(saved));
//
// A value is a c10::IValue of LibTorch: a generic dict whose keys are strings or integers, a list,
// a tuple, a tensor, a bool, an integer, a double, a string, or None. Other types in state_dicts
// are converted: a dtype, a device and a layout to strings ("torch.float32"), torch.Size to a
// tuple, and bytes to a tensor of Byte.
//
// No function here is collective, and none has shared state: all are thread-safe.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>

#pragma GCC visibility push(default)

namespace lockstep::checkpoint {

// Writes a file that torch.load(path, weights_only=True) accepts, also with mmap=True. Tensors that
// share a storage share it in the file; strides and offsets are kept; requires_grad is not. Device
// tensors are copied to the host and are CPU tensors in the file.
//
// Writes the file atomically. Throws InvalidArgument for a value of another kind, a string that is
// not UTF-8, or a tensor without values; SystemError if the disk is full or the folder is not
// writable. `path` is then unchanged.
void write_torch_file(const std::filesystem::path& path, const c10::IValue& value);

struct TorchReading {
  // Compares each record that is read with its checksum, if the file has checksums.
  bool verify = true;
  // Maps the tensors to the file, whose pages are loaded when they are touched: for files larger
  // than the memory. Writes to such a tensor stay private to this process. The file must not become
  // shorter while the tensors live: otherwise reading them raises SIGBUS.
  bool map = false;
};

// Reads a state_dict that Python wrote with torch.save(), in the zip format, in either byte order.
// The pickle is never executed: it may refer to tensors, their storages and the values above, and
// to nothing else. Tensors are on the CPU, regardless of the device they were saved on, and do not
// require grad; tensors that shared a storage still share it.
//
// Throws BadInput in one line that names the file if it is not such a file (including files of
// PyTorch before 1.6 and TorchScript archives, which LibTorch's torch::save() writes), if the
// pickle asks for another global, if a record is compressed, missing, or of another length or
// checksum, or if a tensor exceeds its storage. Throws SystemError if the file cannot be opened or
// the disk fails.
[[nodiscard]] c10::IValue read_torch_file(const std::filesystem::path& path, TorchReading how = {});

// Returns the tensors of a value by name: the path of keys and indices, joined by dots, as
// "model.fc.weight". Skips values that are not tensors. Throws BadInput if two tensors get the same
// name.
[[nodiscard]] NamedTensors tensors_in(const c10::IValue& value);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
