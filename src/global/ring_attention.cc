#include "global/ring_attention.h"

#include "global/spec.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

namespace lockstep::global {
namespace {

// A part of the sequence that a rank has, with its index among all parts.
struct Piece {
  int place = 0;
  std::int64_t length = 0;
};

std::vector<Piece> pieces_of(std::int64_t length, Placement cut, int ranks, int rank) {
  const Ranges ranges = ranges_of(length, cut, ranks, rank);
  std::vector<Piece> pieces = {{rank, ranges[0].length()}};
  if (cut.is_zigzag()) pieces.push_back({2 * ranks - 1 - rank, ranges[1].length()});
  return pieces;
}

}  // namespace

std::vector<RingStep> ring_steps(int ranks, int rank, Placement cut, bool is_causal,
                                 std::int64_t queries, std::int64_t keys) {
  const std::vector<Piece> own = pieces_of(queries, cut, ranks, rank);
  std::vector<RingStep> steps;
  for (int s = 0; s < ranks; ++s) {
    RingStep step{.source = (rank - s + ranks) % ranks, .is_causal = is_causal && s == 0};
    const std::vector<Piece> theirs = pieces_of(keys, cut, ranks, step.source);
    // Parts are in sequence order, so the visible region is a rectangle: the last queries and the
    // first keys.
    auto sees = [&](const Piece& query, const Piece& key) {
      return !is_causal || s == 0 || key.place < query.place;
    };
    for (const Piece& piece : own)
      (sees(piece, theirs.front()) ? step.queries : step.first_query) += piece.length;
    for (const Piece& piece : theirs)
      if (sees(own.back(), piece)) step.keys += piece.length;
    if (step.queries == 0) step.keys = 0;
    steps.push_back(step);
  }
  return steps;
}

namespace {

using torch::jit::Stack;

constexpr CallOptions call_of_keys = {.tag = "ring attention: keys and values"};
constexpr CallOptions call_of_gradients = {.tag = "ring attention: gradients"};

at::Tensor rows_from(const at::Tensor& tensor, std::int64_t first, std::int64_t count) {
  return first == 0 && tensor.size(2) == count ? tensor : tensor.narrow(2, first, count);
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

// Returns zeros [rows, heads, tokens, features] with the memory layout of the kernel's result.
at::Tensor zeros_like_result(const at::Tensor& like, std::int64_t features, at::ScalarType dtype) {
  return at::zeros({like.size(0), like.size(2), like.size(1), features},
                   like.options().dtype(dtype))
      .transpose(1, 2);
}

}  // namespace

// Passes tensors [rows, heads, tokens, features] around the ring, one message per tensor.
class RingAttention::Ring {
 public:
  explicit Ring(const RingAttention& of)
      : of_(of), group_(of.context_.group(of.axis_)), ranks_(group_.size()), rank_(group_.rank()) {}

  [[nodiscard]] std::int64_t tokens_of(int source) const {
    return length_of(of_.keys_, of_.cut_, ranks_, source);
  }

  struct Passing {
    at::Tensor sent, received;  // kept alive until send and receive complete
    std::vector<Work> works;
  };

  // Sends `flat` to the next rank, and receives the previous rank's tensor of `source`. All ranks
  // post the messages of a turn in the order of the ranks that send them: GPUs need a common order
  // (plan/walk.h has the reason).
  [[nodiscard]] Passing pass(const at::Tensor& flat, int source, std::int64_t a_token,
                             const CallOptions& call) {
    Passing passing{flat, at::empty({tokens_of(source) * a_token}, flat.options()), {}};
    const bool sends = flat.numel() > 0, receives = passing.received.numel() > 0;
    const int next = (rank_ + 1) % ranks_, previous = (rank_ - 1 + ranks_) % ranks_;
    if (sends && rank_ < previous) passing.works.push_back(group_.send(flat, next, call));
    if (receives) passing.works.push_back(group_.recv(passing.received, previous, call));
    if (sends && rank_ > previous) passing.works.push_back(group_.send(flat, next, call));
    if (!receives) return passing;
    std::lock_guard lock(of_.context_.traffic_mutex);
    ++of_.context_.traffic.messages;
    of_.context_.traffic.bytes += static_cast<std::int64_t>(passing.received.nbytes());
    return passing;
  }

  [[nodiscard]] at::Tensor wait(Passing passing) {
    const auto begin = std::chrono::steady_clock::now();
    for (Work& work : passing.works) work.wait();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    std::lock_guard lock(of_.context_.traffic_mutex);
    of_.context_.seconds_waited += waited.count();
    return std::move(passing.received);
  }

  void count(const RingStep& step, const at::Tensor& query) {
    std::lock_guard lock(of_.context_.traffic_mutex);
    of_.context_.scores += step.scores() * query.size(0) * query.size(1);
  }

 private:
  const RingAttention& of_;
  Group& group_;
  int ranks_, rank_;
};

namespace {

// Keys and values of one rank in one tensor, keys first, with a view of each.
struct KeysAndValues {
  KeysAndValues(const at::Tensor& key, const at::Tensor& value)
      : flat(at::cat({key.contiguous().view({-1}), value.contiguous().view({-1})})),
        key(part(0, key, key.size(2))),
        value(part(key.numel(), value, value.size(2))) {}
  // Makes views of `all`, with the shapes of `like` except that there are `tokens` tokens.
  KeysAndValues(at::Tensor all, const KeysAndValues& like, std::int64_t tokens)
      : flat(std::move(all)),
        key(part(0, like.key, tokens)),
        value(part(key.numel(), like.value, tokens)) {}

  [[nodiscard]] at::Tensor part(std::int64_t offset, const at::Tensor& like,
                                std::int64_t tokens) const {
    const std::int64_t count = like.size(0) * like.size(1) * tokens * like.size(3);
    return flat.narrow(0, offset, count).view({like.size(0), like.size(1), tokens, like.size(3)});
  }

  // Returns the number of elements per token.
  [[nodiscard]] static std::int64_t a_token(const at::Tensor& key, const at::Tensor& value) {
    return key.size(0) * key.size(1) * key.size(3) + value.size(0) * value.size(1) * value.size(3);
  }

  at::Tensor flat, key, value;
};

}  // namespace

RingAttention::RingAttention(MeshContext& context, int axis, Placement cut, bool is_causal,
                             std::int64_t queries, std::int64_t keys, Kernel run,
                             std::size_t arguments, AttentionForm form)
    : context_(context),
      axis_(axis),
      cut_(cut),
      keys_(keys),
      run_(std::move(run)),
      arguments_(arguments),
      form_(form) {
  const AxisPlace place = context.place()[static_cast<std::size_t>(axis)];
  steps_ = ring_steps(place.size, place.coordinate, cut, is_causal, queries, keys);
}

at::Tensor RingAttention::plain_sums(const at::Tensor& sums, std::int64_t tokens) const {
  return (form_.has_last_dim ? sums.squeeze(-1) : sums).narrow(2, 0, tokens);
}

at::Tensor RingAttention::kernel_sums(const at::Tensor& sums) const {
  const std::int64_t over = sums.size(2) % form_.alignment;
  const at::Tensor aligned =
      over == 0 ? sums.contiguous() : at::constant_pad_nd(sums, {0, form_.alignment - over});
  return form_.has_last_dim ? aligned.unsqueeze(-1) : aligned;
}

// Schema: query, key, value, ... -> output, logsumexp, ...
void RingAttention::forward(Stack& stack) const {
  const auto items = torch::jit::last(stack, arguments_);
  Stack given(items.begin(), items.end());
  torch::jit::drop(stack, arguments_);
  const at::Tensor query = dense(given[0].toTensor());
  const at::ScalarType wide = at::toOpMathType(query.scalar_type());
  at::Tensor output = zeros_like_result(query, given[2].toTensor().size(3), wide);
  at::Tensor sums = at::full({query.size(0), query.size(1), query.size(2)},
                             -std::numeric_limits<double>::infinity(), query.options().dtype(wide));
  Ring ring(*this);
  KeysAndValues now(given[1].toTensor(), given[2].toTensor());
  const std::int64_t a_token = KeysAndValues::a_token(given[1].toTensor(), given[2].toTensor());
  // A rank without tokens runs no kernel. Its remaining results are undefined tensors; the flash
  // and cuDNN kernels also return two integers, the numbers of queries and keys.
  Stack others(form_.results - 2, at::Tensor());
  if (form_.results == 9) others[2] = others[3] = std::int64_t{0};
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const RingStep& step = steps_[s];
    Ring::Passing next;
    if (s + 1 < steps_.size())
      next = ring.pass(now.flat, steps_[s + 1].source, a_token, call_of_keys);
    if (step.keys > 0 && query.numel() > 0) {
      Stack call = given;
      call[0] = rows_from(query, step.first_query, step.queries);
      call[1] = rows_from(now.key, 0, step.keys);
      call[2] = rows_from(now.value, 0, step.keys);
      call[form_.causal] = step.is_causal;
      if (form_.keeps_sums) call[*form_.keeps_sums] = true;
      run_(call);
      std::copy(call.begin() + 2, call.end(), others.begin());
      ring.count(step, query);
      at::Tensor of_output = rows_from(output, step.first_query, step.queries);
      at::Tensor of_sums = rows_from(sums, step.first_query, step.queries);
      const at::Tensor more = plain_sums(call[1].toTensor(), step.queries).to(wide);
      const at::Tensor both = at::logaddexp(of_sums, more);
      of_output.mul_((of_sums - both).exp_().unsqueeze(-1))
          .addcmul_(call[0].toTensor().to(wide), (more - both).exp_().unsqueeze(-1));
      of_sums.copy_(both);
    }
    if (s + 1 < steps_.size())
      now = KeysAndValues(ring.wait(std::move(next)), now, ring.tokens_of(steps_[s + 1].source));
  }
  stack.emplace_back(output.to(query.scalar_type()));
  // The memory-efficient kernel returns no tokens then.
  if (form_.alignment > 1 && !given[*form_.keeps_sums].toBool()) sums = sums.narrow(2, 0, 0);
  stack.emplace_back(form_.has_last_dim ? sums.unsqueeze(-1) : sums);
  stack.insert(stack.end(), others.begin(), others.end());
}

// Schema: grad_out, query, key, value, ... -> the gradients of query, key and value
void RingAttention::backward(Stack& stack) const {
  const auto items = torch::jit::last(stack, arguments_);
  Stack given(items.begin(), items.end());
  torch::jit::drop(stack, arguments_);
  const at::Tensor query = dense(given[1].toTensor());
  const at::Tensor key = given[2].toTensor(), value = given[3].toTensor();
  const at::Tensor sums = plain_sums(given[form_.sums].toTensor(), query.size(2));
  const at::ScalarType wide = at::toOpMathType(query.scalar_type());
  at::Tensor of_query = zeros_like_result(query, query.size(3), wide);
  Ring ring(*this);
  KeysAndValues now(key, value);
  const std::int64_t a_token = KeysAndValues::a_token(key, value);
  // Gradients of the current keys and values: the sum over the previous ranks and this one.
  KeysAndValues gradients = now;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const RingStep& step = steps_[s];
    const bool is_last = s + 1 == steps_.size();
    Ring::Passing next;
    if (!is_last) next = ring.pass(now.flat, steps_[s + 1].source, a_token, call_of_keys);
    Ring::Passing before;
    at::Tensor own = at::zeros(now.flat.sizes(), now.flat.options().dtype(wide));
    if (s > 0) before = ring.pass(gradients.flat, step.source, a_token, call_of_gradients);
    gradients = KeysAndValues(std::move(own), now, ring.tokens_of(step.source));
    if (step.keys > 0 && query.numel() > 0) {
      Stack call = given;
      for (std::size_t i : {std::size_t{0}, std::size_t{1}, form_.sums - 1})
        call[i] = rows_from(given[i].toTensor(), step.first_query, step.queries).contiguous();
      call[form_.sums] = kernel_sums(rows_from(sums, step.first_query, step.queries));
      call[2] = rows_from(now.key, 0, step.keys).contiguous();
      call[3] = rows_from(now.value, 0, step.keys).contiguous();
      call[form_.causal] = step.is_causal;
      if (form_.longest) {
        call[*form_.longest] = step.queries;
        call[*form_.longest + 1] = step.keys;
      }
      if (form_.gradient_mask)
        call[*form_.gradient_mask] = c10::List<bool>({true, true, true, false});
      run_(call);
      rows_from(of_query, step.first_query, step.queries).add_(call[0].toTensor());
      rows_from(gradients.key, 0, step.keys).copy_(call[1].toTensor());
      rows_from(gradients.value, 0, step.keys).copy_(call[2].toTensor());
    }
    if (s > 0) gradients.flat.add_(ring.wait(std::move(before)));
    if (!is_last)
      now = KeysAndValues(ring.wait(std::move(next)), now, ring.tokens_of(steps_[s + 1].source));
  }
  // Return the gradients to their owners: the previous rank was the last one to use this rank's
  // keys.
  if (steps_.size() > 1) {
    const int own = steps_.front().source;
    at::Tensor all = ring.wait(ring.pass(gradients.flat, own, a_token, call_of_gradients));
    gradients = KeysAndValues(std::move(all), gradients, ring.tokens_of(own));
  }
  stack.emplace_back(of_query.to(query.scalar_type()));
  stack.emplace_back(gradients.key.to(key.scalar_type()));
  stack.emplace_back(gradients.value.to(value.scalar_type()));
  if (form_.gradient_mask) stack.emplace_back(at::Tensor());  // the mask's
}

}  // namespace lockstep::global
