// What a pickle of torch.save() means: LibTorch's values for the tree of a Pickle, and back.
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

// The globals that state_dicts need: dtypes, storages, the functions that put tensors together.
[[nodiscard]] const std::vector<std::string_view>& torch_globals();

// Gives the bytes of a storage by its key, as a tensor of Byte whose memory is aligned for any
// element; BadInput when it has other than so many.
using ReadStorage =
    std::function<at::Tensor(const std::string& key, std::uint64_t bytes, at::ScalarType dtype)>;

// Throws BadInput without naming the file. What the pickle shares is shared; dicts keep the file's
// order, and their keys are whole numbers and texts.
[[nodiscard]] c10::IValue values_of(const Pickle& pickle, const ReadStorage& read_storage);

// A tuple or torch.Size of whole numbers; BadInput when it is none.
[[nodiscard]] std::vector<std::int64_t> numbers_of(const Pickle& pickle, Pickle::Ref ref);

// The bytes of sizes that are not negative and of a dtype; BadInput where their number overflows.
[[nodiscard]] std::uint64_t checked_bytes(std::span<const std::int64_t> sizes,
                                          at::ScalarType dtype);

// The pickle of a value, and the storages that it names by their place here, each once.
struct PickledValue {
  std::string pickle;
  std::vector<at::Tensor> storages;  // of Byte, dense, on the CPU
};

// InvalidArgument for what weights_only=True would not load.
[[nodiscard]] PickledValue pickled(const c10::IValue& value);

}  // namespace lockstep::checkpoint
