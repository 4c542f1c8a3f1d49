// The language models of lockstep/models as lists of pieces, for split():
//
//   auto pieces = lockstep::pieces_of(gpt);
//   auto stages = lockstep::split(*gpt, pieces, lockstep::even_points(pieces, 4));
//
// Pieces share the modules with the model. All of it is local.
#pragma once

#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/moe.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/pipeline/stage.h>

#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// The embedding, each block, and the head with the last normalisation: from tokens [rows, tokens]
// to logits [rows, tokens, vocabulary]. A Moe's blocks pass the losses of the mixtures so far on,
// and in train() the head gives their sum besides.
[[nodiscard]] std::vector<ModelPiece> pieces_of(const models::Gpt& model);
[[nodiscard]] std::vector<ModelPiece> pieces_of(const models::Llama& model);
[[nodiscard]] std::vector<ModelPiece> pieces_of(const models::Moe& model);

// Points that cut the pieces between the first and the last one, the blocks, into `stages` parts as
// equal as can be; the first piece goes with the first of them, and the last piece with the last.
// InvalidArgument when there are fewer blocks than stages.
[[nodiscard]] std::vector<std::string> even_points(const std::vector<ModelPiece>& pieces,
                                                   int stages);

// What the models' loss() computes of what the head gives: mean cross-entropy of the tokens that
// follow, targets are -1 where nothing is to be predicted; and losses that stand behind the logits.
[[nodiscard]] at::Tensor token_loss(const Tensors& outputs, const Tensors& targets);

}  // namespace lockstep

#pragma GCC visibility pop
