#include "models/gpt_options.h"

#include <lockstep/base/error.h>

#include <torch/nn/init.h>

#include <cmath>
#include <string>
#include <string_view>

namespace lockstep::models {

GptOptions checked(GptOptions options, const char* what) {
  auto positive = [what](const char* name, std::int64_t value) {
    if (value < 1)
      throw InvalidArgument(c10::str(what, ": expected ", name, " >= 1, found ", value));
  };
  positive("layers", options.layers);
  positive("heads", options.heads);
  positive("width", options.width);
  positive("block", options.block);
  positive("vocabulary", options.vocabulary);
  if (options.width % options.heads != 0) {
    throw InvalidArgument(c10::str(what, ": expected a width divisible by heads, ", options.heads,
                                   ", found ", options.width));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw InvalidArgument(c10::str(what, ": expected dropout in [0, 1), found ", options.dropout));
  }
  return options;
}

void draw_weights(torch::nn::Module& module, std::int64_t layers) {
  constexpr double deviation = 0.02;
  const double residual_deviation = deviation / std::sqrt(2.0 * static_cast<double>(layers));
  for (auto& item : module.named_parameters()) {
    const std::string_view name = item.key();
    if (name.ends_with(".bias")) {
      torch::nn::init::zeros_(item.value());
    } else if (item.value().dim() >= 2) {
      const bool ends_in_stream = name.ends_with("c_proj.weight") || name.ends_with(".down");
      torch::nn::init::normal_(item.value(), 0.0, ends_in_stream ? residual_deviation : deviation);
    }
  }
}

}  // namespace lockstep::models
