// Bytes a parameter that a rank keeps, by the level of sharding (Rajbhandari et al., ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models, SC 2020, figure 1), with Adam.
#pragma once

#include <string_view>

namespace lockstep::apps {

// `mode` is one of modes.h, `element_bytes` 4 (fp32) or 2 (bf16 with fp32 masters). In fp32 a
// parameter and its gradient have 4 bytes each and the two averages 8; in bf16 2 each, and the
// averages with the master 12. Units in flight come on top. Node-shared parameters exist once for
// all ranks: a rank's part of them is counted. InvalidArgument for anything else.
[[nodiscard]] double bytes_a_parameter(std::string_view mode, int element_bytes, int ranks);

}  // namespace lockstep::apps
