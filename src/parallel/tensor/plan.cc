#include <lockstep/parallel/tensor/plan.h>

#include "base/check.h"
#include "parallel/tensor/resolve.h"

namespace lockstep {

Placement TensorStyle::placement(std::int64_t dims) const {
  if (kind_ != Kind::rowwise) return Shard(0, parts_);
  return dims < 2 ? Placement(Replicate()) : Placement(Shard(1));
}

std::string describe(TensorStyle style) {
  if (style.kind() == TensorStyle::Kind::rowwise) return "Rowwise";
  if (style.kind() == TensorStyle::Kind::vocabulary) return "Vocabulary";
  std::string text = style.parts() == 1 ? "Colwise" : formatted("Colwise({})", style.parts());
  if (style.head_count() > 0) text += formatted(", {} heads", style.head_count());
  return text;
}

std::string describe(const TensorPlan& plan, const torch::nn::Module& module, int ranks,
                     bool sequence_parallel) {
  check(ranks >= 1, "tensor parallel plan: expected at least one rank, found {}", ranks);
  return tensor_parallel::text_of(plan, tensor_parallel::planned(plan, module, ranks), ranks,
                                  sequence_parallel);
}

TensorPlan transformer_tensor_plan(std::int64_t heads, const std::string& prefix) {
  TensorPlan plan;
  auto add_layers = [&](const std::string& layers, std::initializer_list<const char*> attentions) {
    for (const char* attention : attentions) {
      const std::string name = layers + attention;
      plan.push_back({name + ".in_proj_weight", Colwise(3).heads(heads)});
      plan.push_back({name + ".in_proj_bias", Colwise(3).heads(heads)});
      plan.push_back({name + ".out_proj", Rowwise()});
    }
    plan.push_back({layers + "linear1", Colwise()});
    plan.push_back({layers + "linear2", Rowwise()});
  };
  add_layers(prefix + "encoder.layers.*.", {"self_attn"});
  add_layers(prefix + "decoder.layers.*.", {"self_attn", "multihead_attn"});
  return plan;
}

}  // namespace lockstep
