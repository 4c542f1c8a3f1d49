// Checks of what a user passed to an operation of a group, before anything is sent: each throws
// InvalidArgument with one line that says which operation, what was expected and what was found.
#pragma once

#include <lockstep/comm/op.h>

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// The caller's tensor, or one made from it.
using Operand = c10::MaybeOwned<at::Tensor>;

class Arguments {
 public:
  // `rank` and `size` are those of the group `group`.
  Arguments(Collective collective, std::string_view group, int rank, int size);

  // A tensor that is only read; a copy when it is not contiguous.
  [[nodiscard]] Operand input(const at::Tensor& tensor) const;
  // A tensor that is written; must be contiguous.
  void output(const at::Tensor& tensor) const;
  // One that must be undefined on this rank.
  void absent(const at::Tensor& tensor, std::string_view role) const;

  void root(int root) const;
  void peer(int peer) const;
  void reduces(Op op, at::ScalarType dtype) const;
  void alike(const at::Tensor& output, const at::Tensor& input) const;
  // tensor has `expected` elements; `why` ends the message.
  void elements(const at::Tensor& tensor, std::string_view role, std::int64_t expected,
                std::string_view why) const;
  void divisible(const at::Tensor& tensor, std::string_view role) const;
  // One count a rank, none negative; returns their sum.
  std::int64_t counts(std::span<const std::int64_t> counts, std::string_view role) const;
  // What a rank sends to itself in an uneven all_to_all is what it receives from itself.
  void kept(std::int64_t sent, std::int64_t received) const;
  // The two share no memory, except that `whole` may hold `part` at element `own_place` (-1: not
  // even there).
  void apart(const at::Tensor& whole, const at::Tensor& part, std::int64_t own_place) const;

 private:
  template <class... Values>
  [[noreturn]] void refuse(std::string_view format, const Values&... values) const;
  void plain(const at::Tensor& tensor, std::string_view role) const;

  std::string_view name_;
  std::string_view group_;
  int rank_;
  int size_;
};

}  // namespace lockstep
