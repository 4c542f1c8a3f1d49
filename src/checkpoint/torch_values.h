// Converts between the tree of a Pickle of torch.save() and LibTorch's values.
#pragma once

#include "checkpoint/pickle.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

// Returns the globals that state_dicts need: dtypes, storages, the functions that rebuild tensors.
[[nodiscard]] const std::vector<std::string_view>& torch_globals();

// Returns the bytes of the storage with this key as a tensor of Byte whose memory is aligned for
// any element type; throws BadInput if its size is not `bytes`.
using ReadStorage =
    std::function<at::Tensor(const std::string& key, std::uint64_t bytes, at::ScalarType dtype)>;

// Throws BadInput without naming the file. Tensors that share a storage in the pickle share it;
// dicts keep the file's order, and their keys are integers and strings.
[[nodiscard]] c10::IValue values_of(const Pickle& pickle, const ReadStorage& read_storage);

// Returns a tuple or torch.Size of integers; throws BadInput for any other value.
[[nodiscard]] std::vector<std::int64_t> numbers_of(const Pickle& pickle, Pickle::Ref ref);

// Returns the number of bytes for non-negative sizes and a dtype; throws BadInput on overflow.
[[nodiscard]] std::uint64_t checked_bytes(std::span<const std::int64_t> sizes,
                                          at::ScalarType dtype);

// The pickle of a value, and the storages that it refers to by their index, each once.
struct PickledValue {
  std::string pickle;
  std::vector<at::Tensor> storages;  // of Byte, dense, on the CPU
};

// Throws InvalidArgument for values that weights_only=True would not load.
[[nodiscard]] PickledValue pickled(const c10::IValue& value);

}  // namespace lockstep::checkpoint
