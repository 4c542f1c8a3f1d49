// `lockstep checkpoint convert FROM TO`.
#pragma once

#include "apps/checkpoint/source.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::apps {

struct ConvertOptions {
  SourceOptions source;
  std::int64_t shard_bytes = 5'000'000'000;
};

// TO by its name: FILE.safetensors, FILE.pt (.pth, .bin), RUN/step-N, else a folder of safetensors
// as model hubs have it. Returns a line that says what was written, and what of FROM was left out.
// BadInput, InvalidArgument and SystemError; what was at TO is then as before.
[[nodiscard]] std::string convert(const std::filesystem::path& from,
                                  const std::filesystem::path& to, ConvertOptions options);

}  // namespace lockstep::apps
