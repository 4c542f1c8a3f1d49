// The tensors of a worker's module that the servers need.
#pragma once

#include "module/tensors.h"
#include "parallel/server/share.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::ps {

// A trained parameter, and its key at the beginning.
struct TrainedParameter {
  at::Tensor tensor;
  Key key;
  at::Tensor pulled;  // by rows: one bool per row, whether its value is current
};

class WorkerKeys {
 public:
  // Throws InvalidArgument, which names a tensor that cannot be sent, a pattern that matches
  // nothing, or a parameter by rows that has no rows.
  WorkerKeys(const torch::nn::Module& module, const std::vector<std::string>& by_rows);

  [[nodiscard]] std::vector<TrainedParameter>& trained() { return trained_; }
  [[nodiscard]] TrainedParameter& trained(const Piece& piece) {
    return trained_[static_cast<std::size_t>(piece.key)];
  }
  [[nodiscard]] std::vector<Key> keys() const;
  // The keys of frozen parameters and buffers, which must be the same on all workers.
  [[nodiscard]] const std::vector<Key>& constant_keys() const { return constant_keys_; }
  // Throws InvalidArgument if a trained parameter has changed its size or dtype.
  void check_unchanged() const;

  // Converts frozen parameters and buffers to one message, and back.
  [[nodiscard]] at::Tensor constants() const;
  [[nodiscard]] std::int64_t bytes_of_constants() const;
  void set_constants(const at::Tensor& message) const;

 private:
  void add_constant(const std::string& name, const at::Tensor& tensor);

  std::vector<TrainedParameter> trained_;
  std::vector<at::Tensor> constants_;
  std::vector<Key> constant_keys_;
};

// The non-zero rows of a dense or sparse gradient: their indices (int64), unique and sorted, and
// their values, on the host.
struct GradientRows {
  at::Tensor rows, values;
};
[[nodiscard]] GradientRows rows_with_gradient(const at::Tensor& gradient);

}  // namespace lockstep::ps
