#include "train/best.h"

#include "base/format.h"
#include "base/text.h"

#include <lockstep/base/error.h>

#include <ATen/ops/tensor.h>

namespace lockstep::train {

checkpoint::Metadata basis_of(const std::string& data_fingerprint,
                              std::optional<std::int64_t> eval_batches) {
  checkpoint::Metadata basis{{"data_fingerprint", data_fingerprint}};
  if (eval_batches) basis["eval_batches"] = formatted("{}", *eval_batches);
  return basis;
}

Best read_best(const std::filesystem::path& file, const checkpoint::Metadata& basis) {
  if (!std::filesystem::exists(file)) return {};
  try {
    checkpoint::Metadata metadata = checkpoint::read_safetensors(file, {.tensors = false}).metadata;
    checkpoint::Metadata own;
    for (const char* name : {"data_fingerprint", "eval_batches"})
      if (auto entry = metadata.find(name); entry != metadata.end()) own.insert(*entry);
    if (own != basis) return {};
    auto val_loss = parse_number(metadata["val_loss"]);
    auto step = parse_integer(metadata["step"]);
    if (val_loss && step) return {.val_loss = *val_loss, .step = *step};
  } catch (const Error&) {  // a file that nothing can be read from is no model
  }
  return {};
}

Best share_best(Group& group, const Best& own) {
  at::Tensor both = at::tensor({own.val_loss, static_cast<double>(own.step)}, at::kDouble);
  group.broadcast(both, 0, {.tag = "best"}).wait();
  const double* values = both.const_data_ptr<double>();
  return {.val_loss = values[0], .step = static_cast<std::int64_t>(values[1])};
}

}  // namespace lockstep::train
