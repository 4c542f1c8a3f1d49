// Mixture of experts: a router sends each token through the k of many feed-forward layers that it
// likes best (Shazeer et al., arXiv:1701.06538; Fedus, Zoph and Shazeer, arXiv:2101.03961).
//
// Routing. The router's logits are computed in float (Zoph et al., arXiv:2202.08906, section 3.3).
// A token chooses the k experts with the largest logits, of equal ones those with smaller numbers.
// Its result is the sum of what they give, weighted by a softmax of the logits: that of all experts
// (before the choice), or of the chosen ones alone (after it, as in Mixtral, arXiv:2401.04088).
//
// Capacity. With a capacity factor f an expert takes in train() at most ceil(f k tokens / experts)
// tokens of the batch, in this order: the first choices of all tokens, in the order of the batch,
// then the second ones, and so on (Lepikhin et al., arXiv:2006.16668). What is left is dropped:
// that expert adds nothing to the token. Without one, and in eval(), nothing is dropped: what a
// model says of one row does not depend on the others.
//
// Losses that keep the load even, for the training loss to be added to:
//
//   balance   experts * sum over experts of f_i P_i, where f_i is the share of all choices that
//             fell on expert i, dropped ones too, and P_i the mean of its probability
//             (arXiv:2101.03961, equations 4 to 6)
//   z         the mean over tokens of the square of logsumexp(logits) (arXiv:2202.08906,
//             equation 5)
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::models {

struct MixtureOptions {
  std::int64_t width = 128;
  std::int64_t hidden = 512;  // of each expert
  std::int64_t experts = 8;
  std::int64_t chosen = 2;  // experts that a token goes through: k
  // Of an expert in train(), in multiples of its even share; 0: unlimited, no token is dropped.
  double capacity_factor = 0;
  bool softmax_after_choice = true;  // not with one expert, whose weight would always be 1
  double balance_weight = 0.01;      // of the two losses in forward()'s second result
  double z_weight = 0.001;
};

// Where the experts of a Mixture are, when a process has not all of them. Each rank has some
// experts and some tokens of the batch. Collective calls, by all ranks in the same order; those
// behind enter() are of its tokens, until the next one.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;

  // Begins a forward(): the input [..., width], a tensor of the layers around the mixture, so that
  // this rank has all of each of its tokens. The router's product is computed with it.
  [[nodiscard]] virtual at::Tensor enter(const at::Tensor& input) = 0;
  // What this rank has of a tensor that was computed with that, as an ordinary one. Differentiable,
  // as are all that give tensors of numbers with a fraction.
  [[nodiscard]] virtual at::Tensor local(const at::Tensor& around) = 0;
  // How long this rank's runs of tokens are that follow one another in the batch, in the order of
  // its tokens: one run where it has rows of its own, several where ranks have parts of each row.
  // `tokens` are all of this rank. As many runs on each rank.
  [[nodiscard]] virtual std::vector<std::int64_t> runs(std::int64_t tokens) = 0;
  // Counts of all ranks that have tokens of the batch: [ranks, runs, ...] of [runs, ...].
  [[nodiscard]] virtual at::Tensor all_counts(const at::Tensor& counts) = 0;
  // This rank's place in them.
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  // The order of the tokens in the batch: numbers of runs (int64), of which run s of rank r has
  // r * runs + s. With one run a rank it is that of the ranks.
  [[nodiscard]] virtual at::Tensor order(std::int64_t runs) = 0;
  // Rows in the order of the experts that they go to, of which rank r has counts[r][e] (int64,
  // [ranks, experts]): those that come to this rank's experts, in the order of its experts.
  [[nodiscard]] virtual at::Tensor to_experts(const at::Tensor& rows, const at::Tensor& counts) = 0;
  [[nodiscard]] virtual at::Tensor back(const at::Tensor& rows, const at::Tensor& counts) = 0;
  // How many rows each of this rank's experts gets.
  [[nodiscard]] virtual std::vector<std::int64_t> rows_of_experts(const at::Tensor& counts) = 0;
  // What this rank has of a weight [experts, ...].
  [[nodiscard]] virtual at::Tensor own(const at::Tensor& weight) = 0;
  // What this rank has of the output, as a tensor of the layers around; and of the loss, which is
  // the sum of what ranks with parts of the same rows have.
  [[nodiscard]] virtual at::Tensor leave(const at::Tensor& output) = 0;
  [[nodiscard]] virtual at::Tensor leave_loss(const at::Tensor& part) = 0;
};

// Of the last forward(): the whole batch, on every rank.
struct MixtureLoad {
  std::vector<std::int64_t> chosen;  // of each expert: how often it was chosen
  std::int64_t dropped = 0;          // choices that found no room
};

class MixtureImpl : public torch::nn::Module {
 public:
  // InvalidArgument names an option that makes no sense.
  explicit MixtureImpl(const MixtureOptions& options);

  struct Result {
    at::Tensor output;  // as the input
    at::Tensor loss;    // balance_weight * balance + z_weight * z, a scalar
  };
  // [..., width], whose leading dims are tokens.
  Result forward(const at::Tensor& x);

  [[nodiscard]] const MixtureOptions& options() const { return options_; }
  [[nodiscard]] const MixtureLoad& last_load() const { return load_; }
  // Local. For a strategy that has cut `up` and `down`; null: all experts are here.
  void set_exchange(std::shared_ptr<ExpertExchange> exchange) { exchange_ = std::move(exchange); }

  torch::nn::Linear router;
  at::Tensor up;    // [experts, hidden, width]
  at::Tensor down;  // [experts, width, hidden]; GELU between them

 private:
  struct Routing;
  struct Choices;
  [[nodiscard]] Routing route(const at::Tensor& logits);
  void find_room(Routing& routing, const Choices& choices);
  [[nodiscard]] at::Tensor loss(const Routing& routing, std::int64_t tokens) const;

  MixtureOptions options_;
  MixtureLoad load_;
  std::shared_ptr<ExpertExchange> exchange_;
};
TORCH_MODULE(Mixture);

}  // namespace lockstep::models

#pragma GCC visibility pop
