// Attention by heads (DeepSpeed Ulysses: Jacobs et al., arXiv:2309.14509). Queries, keys and values
// that are sharded along the sequence are sharded along heads during attention: one all_to_all
// converts each of them, and another one converts the result back. Backward has equally many.
#pragma once

namespace lockstep::global {

// Intercepts aten::scaled_dot_product_attention for the life of the process: each call checks
// whether the mesh of its arguments wants attention by heads (PlacementHints::heads_axis).
void take_attention();

}  // namespace lockstep::global
