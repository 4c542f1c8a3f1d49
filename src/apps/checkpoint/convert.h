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

// Converts FROM to TO. The name of TO selects the format: FILE.safetensors, FILE.pt (.pth, .bin),
// RUN/step-N, otherwise a folder of safetensors in the layout of model hubs. Returns a line that
// says what was written, and which parts of FROM were left out. Throws BadInput, InvalidArgument
// and SystemError; TO is unchanged then.
[[nodiscard]] std::string convert(const std::filesystem::path& from,
                                  const std::filesystem::path& to, ConvertOptions options);

}  // namespace lockstep::apps
