// Sizes of the benchmarks' models.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::apps {

// How wide a model is, and its layers or blocks.
struct ModelSize {
  std::int64_t width = 0;
  int depth = 0;

  [[nodiscard]] bool operator==(const ModelSize&) const = default;
};

inline constexpr std::int64_t gpt_heads = 6;

// That of bench/peers/models.py: of "mlp" or "gpt".
[[nodiscard]] constexpr ModelSize usual_size(std::string_view model) {
  return model == "gpt" ? ModelSize{.width = 384, .depth = 6}
                        : ModelSize{.width = 2048, .depth = 4};
}

}  // namespace lockstep::apps
