// How a step can be made by each system, and which of them stand beside each other.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::apps {

// none, ddp, optimizer, gradients, full, full-node-shared; none, ddp, zero1, fsdp2.
[[nodiscard]] std::span<const std::string_view> our_modes();
[[nodiscard]] std::span<const std::string_view> pytorch_modes();

// PyTorch's mode that divides the same among the ranks. Where there is none (gradients) the one
// that divides less.
[[nodiscard]] std::string counterpart_of(std::string_view our_mode);

// The counterparts of `modes`, each once.
[[nodiscard]] std::vector<std::string> counterparts_of(std::span<const std::string> modes);

}  // namespace lockstep::apps
