// Attention by heads (DeepSpeed Ulysses: Jacobs et al., arXiv:2309.14509): queries, keys and values
// that are cut along the sequence are cut along their heads for the attention alone, by an
// all_to_all each; its result goes back by another one. Backward has as many.
#pragma once

namespace lockstep::global {

// From now on aten::scaled_dot_product_attention asks whether the mesh of its arguments wants this
// (PlacementHints::heads_axis). For the life of the process.
void take_attention();

}  // namespace lockstep::global
