#include "train/micro_batches.h"

#include "base/check.h"

#include <optional>
#include <utility>

namespace lockstep::train {

std::vector<Batch> micro_batches(const Batch& batch, std::int64_t parts) {
  check(batch.data.defined() && batch.data.dim() > 0,
        "Task::batch: expected rows, found a tensor without a dim");
  std::vector<at::Tensor> data = batch.data.chunk(parts);
  std::vector<Batch> cut(data.size());
  auto hand_out = [&](const at::Tensor& whole, auto&& place) {
    check(whole.defined() && whole.dim() > 0 && whole.size(0) == batch.data.size(0),
          "Task::batch: expected {} rows in each tensor, as in data", batch.data.size(0));
    std::vector<at::Tensor> rows = whole.chunk(parts);
    for (std::size_t part = 0; part < cut.size(); ++part) place(cut[part], rows[part]);
  };
  hand_out(batch.data, [](Batch& to, at::Tensor& rows) { to.data = rows; });
  hand_out(batch.target, [](Batch& to, at::Tensor& rows) { to.target = rows; });
  for (const at::Tensor& more : batch.more)
    hand_out(more, [](Batch& to, at::Tensor& rows) { to.more.push_back(rows); });
  return cut;
}

double accumulate(Handle& handle, const Batch& batch, std::int64_t parts,
                  const std::function<double(const Batch& part, double share)>& backward) {
  const auto rows = static_cast<double>(batch.data.size(0));
  const std::vector<Batch> all = micro_batches(batch, parts);
  double sum = 0;
  for (const Batch& part : all) {
    std::optional<NoSync> accumulating;
    if (&part != &all.back()) accumulating.emplace(handle.no_sync());
    sum += backward(part, static_cast<double>(part.data.size(0)) / rows);
  }
  return sum;
}

Batch cast_batch(Batch batch, std::optional<c10::ScalarType> dtype) {
  if (!dtype) return batch;
  auto cast = [&](at::Tensor& tensor) {
    if (tensor.is_floating_point()) tensor = tensor.to(*dtype);
  };
  cast(batch.data);
  for (at::Tensor& tensor : batch.more) cast(tensor);
  return batch;
}

}  // namespace lockstep::train
