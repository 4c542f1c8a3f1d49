// Converts between the tree of a Pickle of torch.save() and LibTorch's values.
#pragma once

#include "checkpoint/pickle.h"

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
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

// The names of torch.save() for dtypes and their storages.

struct TorchDtype {
  std::string_view name;     // "torch.float32"
  std::string_view storage;  // "torch.FloatStorage"; empty: uses an untyped storage
  c10::ScalarType dtype;
};

inline constexpr std::string_view untyped_storage = "torch.storage.UntypedStorage";

inline constexpr std::array<TorchDtype, 20> torch_dtypes{{
    {"torch.float64", "torch.DoubleStorage", c10::ScalarType::Double},
    {"torch.float32", "torch.FloatStorage", c10::ScalarType::Float},
    {"torch.float16", "torch.HalfStorage", c10::ScalarType::Half},
    {"torch.bfloat16", "torch.BFloat16Storage", c10::ScalarType::BFloat16},
    {"torch.int64", "torch.LongStorage", c10::ScalarType::Long},
    {"torch.int32", "torch.IntStorage", c10::ScalarType::Int},
    {"torch.int16", "torch.ShortStorage", c10::ScalarType::Short},
    {"torch.int8", "torch.CharStorage", c10::ScalarType::Char},
    {"torch.uint8", "torch.ByteStorage", c10::ScalarType::Byte},
    {"torch.bool", "torch.BoolStorage", c10::ScalarType::Bool},
    {"torch.complex64", "torch.ComplexFloatStorage", c10::ScalarType::ComplexFloat},
    {"torch.complex128", "torch.ComplexDoubleStorage", c10::ScalarType::ComplexDouble},
    {"torch.uint16", "", c10::ScalarType::UInt16},
    {"torch.uint32", "", c10::ScalarType::UInt32},
    {"torch.uint64", "", c10::ScalarType::UInt64},
    {"torch.float8_e4m3fn", "", c10::ScalarType::Float8_e4m3fn},
    {"torch.float8_e5m2", "", c10::ScalarType::Float8_e5m2},
    {"torch.float8_e4m3fnuz", "", c10::ScalarType::Float8_e4m3fnuz},
    {"torch.float8_e5m2fnuz", "", c10::ScalarType::Float8_e5m2fnuz},
    {"torch.float8_e8m0fnu", "", c10::ScalarType::Float8_e8m0fnu},
}};

// Returns null for an unknown dtype or name. An empty storage name never matches.
[[nodiscard]] inline const TorchDtype* find_torch_dtype(c10::ScalarType dtype) {
  auto row = std::ranges::find(torch_dtypes, dtype, &TorchDtype::dtype);
  return row == torch_dtypes.end() ? nullptr : &*row;
}
[[nodiscard]] inline const TorchDtype* find_torch_dtype(std::string_view name) {
  auto row = std::ranges::find(torch_dtypes, name, &TorchDtype::name);
  return row == torch_dtypes.end() ? nullptr : &*row;
}
[[nodiscard]] inline const TorchDtype* find_torch_storage(std::string_view storage) {
  if (storage.empty()) return nullptr;
  auto row = std::ranges::find(torch_dtypes, storage, &TorchDtype::storage);
  return row == torch_dtypes.end() ? nullptr : &*row;
}

// LibTorch's dict with values of any type, as in state_dicts.

using Dict = c10::impl::GenericDict;

[[nodiscard]] inline Dict empty_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }

}  // namespace lockstep::checkpoint
