// Bytes a parameter that a rank keeps, by the level of sharding (Rajbhandari et al., ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models, SC 2020, figure 1), with Adam.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace lockstep::apps {

// `mode` is one of modes.h. In fp32 a parameter and its gradient have 4 bytes each and the two
// averages 8; in bf16 2 each, and the averages with the fp32 master 12. Units in flight come on
// top. Node-shared parameters exist once for all ranks: a rank's part of them is counted.
[[nodiscard]] double bytes_a_parameter(std::string_view mode, c10::ScalarType dtype, int ranks);

}  // namespace lockstep::apps
