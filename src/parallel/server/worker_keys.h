// What a worker's module has for the servers.
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

// A parameter that is trained, and how it was at the beginning.
struct TrainedParameter {
  at::Tensor tensor;
  Key key;
  at::Tensor pulled;  // by rows: bool for each row, whether its value is of now
};

class WorkerKeys {
 public:
  // InvalidArgument names a tensor that cannot be sent, a pattern that names nothing, a parameter
  // by rows that has none.
  WorkerKeys(const torch::nn::Module& module, const std::vector<std::string>& by_rows);

  [[nodiscard]] std::vector<TrainedParameter>& trained() { return trained_; }
  [[nodiscard]] TrainedParameter& trained(const Piece& piece) {
    return trained_[static_cast<std::size_t>(piece.key)];
  }
  [[nodiscard]] std::vector<Key> keys() const;
  // Of frozen parameters and buffers, which must be the same on all workers.
  [[nodiscard]] const std::vector<Key>& constant_keys() const { return constant_keys_; }
  // InvalidArgument when a trained parameter is no longer what it was.
  void check_unchanged() const;

  // Frozen parameters and buffers, as one message; and back.
  [[nodiscard]] at::Tensor constants() const;
  [[nodiscard]] std::int64_t bytes_of_constants() const;
  void set_constants(const at::Tensor& message) const;

 private:
  void add_constant(const std::string& name, const at::Tensor& tensor);

  std::vector<TrainedParameter> trained_;
  std::vector<at::Tensor> constants_;
  std::vector<Key> constant_keys_;
};

// The rows of a gradient, dense or sparse, that are not zero: their numbers (int64), each once, in
// order, and their values, on the host.
struct GradientRows {
  at::Tensor rows, values;
};
[[nodiscard]] GradientRows rows_with_gradient(const at::Tensor& gradient);

}  // namespace lockstep::ps
