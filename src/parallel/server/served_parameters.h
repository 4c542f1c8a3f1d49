// ServedParameters: a server's rows of the parameters, and their optimizer.
//
// Not thread-safe: its owner lets one thread update, or several read.
#pragma once

#include "parallel/server/share.h"

#include <lockstep/parallel/server/server.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::ps {

// A worker's gradients of one step, as they came.
struct PushedGradients {
  at::Tensor whole;                // a message of Share::Kind::whole
  at::Tensor flags;                // uint8 of each piece: whether it has a gradient
  std::vector<at::Tensor> rows;    // of each piece by rows: int64, sorted, each once
  std::vector<at::Tensor> values;  // their gradients
};

class ServedParameters {
 public:
  // `values`: a message of Share::Kind::all.
  ServedParameters(std::vector<Key> keys, std::vector<Piece> pieces, const at::Tensor& values,
                   const MakeOptimizer& make_optimizer);

  [[nodiscard]] const std::vector<Key>& keys() const { return keys_; }
  [[nodiscard]] const Share& whole() const { return whole_; }
  [[nodiscard]] const Share& by_rows() const { return by_rows_; }
  [[nodiscard]] std::size_t pieces() const { return pieces_.size(); }

  // Splits a message with the rows of all pieces by rows into one tensor per piece. Throws BadInput
  // if these pieces do not have such rows.
  using Tensors = std::vector<at::Tensor>;
  [[nodiscard]] std::pair<Tensors, Tensors> cut_rows(const at::Tensor& counts,
                                                     const at::Tensor& rows,
                                                     const at::Tensor& values) const;
  // Makes one update by `step` with the mean of these gradients of at least one worker.
  void update(std::span<const PushedGradients* const> gradients,
              const std::function<void(torch::optim::Optimizer&)>& step);
  // Calls `action`, which is ServerOptions::on_request.
  void request(std::string_view text, const OnRequest& action);
  // Writes the values of the whole pieces into a message.
  void read(const at::Tensor& buffer) const;
  // Returns rows of a piece by rows. Numbers count from the first row of the piece.
  [[nodiscard]] at::Tensor read_rows(std::size_t piece, const at::Tensor& rows) const;

 private:
  void set_whole(std::size_t i, std::span<const PushedGradients* const> gradients);
  void set_rows(std::size_t i, std::span<const PushedGradients* const> gradients);

  std::vector<Key> keys_;
  std::vector<Piece> pieces_;
  Share whole_, by_rows_;
  std::vector<at::Tensor> parameters_;  // by piece
  std::vector<Part> parts_;             // the same
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace lockstep::ps
