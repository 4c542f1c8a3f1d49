// The files of a checkpoint's folder that hold tensors.
#pragma once

namespace lockstep::checkpoint {

inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* optimizer_file = "optimizer.safetensors";
inline constexpr const char* ignored_file = "ignored.safetensors";
inline constexpr const char* random_file = "random.safetensors";

}  // namespace lockstep::checkpoint
