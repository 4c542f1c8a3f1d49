// Mixture of experts: for each token a router chooses k of many feed-forward layers (Shazeer et
// al., arXiv:1701.06538; Fedus, Zoph and Shazeer, arXiv:2101.03961).
//
// Routing. The router's logits are computed in float (Zoph et al., arXiv:2202.08906, section 3.3).
// A token chooses the k experts with the largest logits; ties go to the lower expert number. The
// output is the sum of the experts' outputs, weighted by a softmax of the logits, which is taken
// either over all experts (before the choice) or over the chosen experts only (after the choice, as
// in Mixtral, arXiv:2401.04088).
//
// Capacity. With a capacity factor f, an expert accepts at most ceil(f k tokens / experts) tokens
// of a batch in train(). Choices are accepted in this order: the first choices of all tokens in
// batch order, then the second choices, and so on (Lepikhin et al., arXiv:2006.16668). The other
// choices are dropped: the expert adds nothing to these tokens. Without a capacity factor, and in
// eval(), no choice is dropped, so the output for one row does not depend on other rows.
//
// Load-balancing losses, to be added to the training loss:
//
//   balance   experts * sum over experts of f_i P_i, where f_i is the fraction of all choices that
//             went to expert i, dropped ones included, and P_i is the mean of its probability
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
  std::int64_t hidden_size = 128;
  std::int64_t ffn_size = 512;  // per expert
  std::int64_t experts = 8;
  std::int64_t top_k = 2;  // experts per token: k
  // Capacity of an expert in train(), in multiples of its even share. 0 means unlimited: no token
  // is dropped.
  double capacity_factor = 0;
  bool softmax_after_choice = true;  // not allowed with one expert, whose weight would always be 1
  double balance_weight = 0.01;      // weights of the two losses in Result::loss
  double z_weight = 0.001;
};

// Exchanges tokens between ranks if the experts of a Mixture are distributed. Each rank has some
// experts and some tokens of the batch. All functions are collective: all ranks call them in the
// same order. After enter(), all calls refer to the tokens of its input until the next enter().
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;

  // Begins a forward(). `input` is a tensor [..., width] from the surrounding layers. The result
  // has all features of each of this rank's tokens; the router uses it as input.
  [[nodiscard]] virtual at::Tensor enter(const at::Tensor& input) = 0;
  // Returns this rank's part of a tensor that was computed from the result of enter(), as a local
  // tensor. Differentiable, as are all functions here that return floating-point tensors.
  [[nodiscard]] virtual at::Tensor local(const at::Tensor& around) = 0;
  // Returns the lengths of this rank's runs of consecutive tokens of the batch, in the order of its
  // tokens: one run if the rank has whole rows, several if ranks have parts of each row. `tokens`
  // is the number of all tokens of this rank. Every rank has the same number of runs.
  [[nodiscard]] virtual std::vector<std::int64_t> runs(std::int64_t tokens) = 0;
  // Gathers counts [runs, ...] from all ranks that have tokens of the batch; returns [ranks, runs,
  // ...].
  [[nodiscard]] virtual at::Tensor all_counts(const at::Tensor& counts) = 0;
  // Returns this rank's index in the first dim of all_counts().
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  // Returns the batch order of all ranks' runs as int64 run numbers in host memory; run s of rank r
  // has the number r * runs + s. With one run per rank, this is the order of the ranks.
  [[nodiscard]] virtual at::Tensor order(std::int64_t runs) = 0;
  // Sends `rows`, sorted by target expert, to the ranks of their experts; counts[r][e] (int64,
  // [ranks, experts], in host memory) is the number of rows from rank r for expert e. Returns the
  // rows for this rank's experts, in the order of its experts. back() returns results to the ranks
  // that sent the rows.
  [[nodiscard]] virtual at::Tensor to_experts(const at::Tensor& rows, const at::Tensor& counts) = 0;
  [[nodiscard]] virtual at::Tensor back(const at::Tensor& rows, const at::Tensor& counts) = 0;
  // Returns the number of rows that each of this rank's experts gets.
  [[nodiscard]] virtual std::vector<std::int64_t> rows_of_experts(const at::Tensor& counts) = 0;
  // Returns this rank's part of a weight [experts, ...].
  [[nodiscard]] virtual at::Tensor own(const at::Tensor& weight) = 0;
  // leave() converts this rank's output to a tensor for the surrounding layers. leave_loss() does
  // the same for the loss: ranks with parts of the same rows sum their parts.
  [[nodiscard]] virtual at::Tensor leave(const at::Tensor& output) = 0;
  [[nodiscard]] virtual at::Tensor leave_loss(const at::Tensor& part) = 0;
};

// Statistics of the last forward() over the whole batch; the same on every rank.
struct MixtureLoad {
  std::vector<std::int64_t> chosen;  // per expert: how often it was chosen
  std::int64_t dropped = 0;          // choices beyond the capacity of their expert
};

class MixtureImpl : public torch::nn::Module {
 public:
  // Throws InvalidArgument if an option is invalid; the message names the option.
  explicit MixtureImpl(const MixtureOptions& options);

  struct Result {
    at::Tensor output;  // shape of the input
    at::Tensor loss;    // balance_weight * balance + z_weight * z, a scalar
  };
  // `x` is [..., width]; its leading dims are tokens.
  Result forward(const at::Tensor& x);

  [[nodiscard]] const MixtureOptions& options() const { return options_; }
  [[nodiscard]] const MixtureLoad& last_load() const { return load_; }
  // Sets the exchange of a strategy that has sharded `up` and `down`; null if this process has all
  // experts. Not collective.
  void set_exchange(std::shared_ptr<ExpertExchange> exchange) { exchange_ = std::move(exchange); }

  torch::nn::Linear router;
  at::Tensor up;    // [experts, hidden, width]
  at::Tensor down;  // [experts, width, hidden]; GELU between up and down

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
