// The files of a checkpoint's folder that hold tensors.
#pragma once

#include <array>

namespace lockstep::checkpoint {

inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* ignored_file = "ignored.safetensors";
inline constexpr const char* own_file = "own.safetensors";
inline constexpr const char* random_file = "random.safetensors";

// All of them; without ignored_file where no rank ignores anything, and without own_file where none
// has tensors of its own.
inline constexpr std::array tensor_files{model_file, optimizer_file, ignored_file, own_file,
                                         random_file};

}  // namespace lockstep::checkpoint
