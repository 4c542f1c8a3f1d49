// Checks of a module: whether all ranks hold the same model, which tensors share memory, and
// whether the module has changed since a handle was made.
#pragma once

#include "module/tensors.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::modules {

// Collective. Returns the numbers of all ranks, in rank order. Each rank has equally many.
[[nodiscard]] std::vector<std::int64_t> numbers_of_all(
    Group group, std::vector<std::int64_t> own, const CallOptions& call = {},
    std::source_location where = std::source_location::current());

// Collective. Runs `action` on rank 0; its error is thrown on all ranks, as run_on_all_or_fail().
void run_on_root_or_fail(Group& group, const std::function<void()>& action);

// Collective. Returns what `make` returns on rank 0, on all ranks. An error of `make` is thrown on
// all ranks.
[[nodiscard]] std::string text_of_root(Group& group, const std::function<std::string()>& make);

// Returns one line per parameter and buffer: name, dtype, sizes, ties, whether it requires a
// gradient, and the tensors that it shares memory with.
[[nodiscard]] std::vector<std::string> lines_of(const ModuleTensors& tensors);

// Collective. Every rank passes one line per property that must be equal, in order ("parameter
// fc1.weight: Float [3, 4]"). Exchanges a fingerprint, and the lines only if fingerprints differ.
// Throws the same Mismatch on every rank, with the first line that differs and the two ranks; the
// group stays usable.
void check_same_lines(const Group& group, const std::vector<std::string>& lines,
                      const CallOptions& call = {});

// Returns a view without the repetitions of expand(): dims of stride 0 get one element.
[[nodiscard]] at::Tensor without_repetitions(const at::Tensor& tensor);

// Returns true if two elements of the tensor share a memory location.
[[nodiscard]] bool repeats_elements(const at::Tensor& tensor);

// Returns, for each tensor, the index of the first earlier one that overlaps it in memory. The same
// tensor twice does not count as overlapping.
[[nodiscard]] std::vector<std::optional<std::size_t>> first_sharing(
    std::span<const at::Tensor> tensors);

// Returns true if another object beside `tensors` holds the storage of `tensor` (one of them): a
// view, or the graph of an operation that made one.
[[nodiscard]] bool is_held_elsewhere(const at::Tensor& tensor, std::span<const at::Tensor> tensors);

// ModuleWatch: detects parameters and buffers that a handle does not know.
//
// A module may get parameters after its handle was made, or unfreeze parameters. Their gradients
// would not be reduced, so each rank would train its own copy. In the same way, a new buffer would
// not be broadcast, so each rank would keep its own values.
class ModuleWatch {
 public:
  // `ignored`: the names that the handle ignores. `made`: "since fully_shard() was called", for
  // messages. `with_buffers`: false if the handle leaves the buffers to each rank. The module must
  // outlive this object.
  ModuleWatch(const torch::nn::Module& module, std::vector<std::string> ignored, std::string made,
              bool with_buffers);

  // Throws InvalidArgument, which names the first such tensor. Not collective. If nothing has
  // changed, takes about a microsecond per ten parameters or two buffers.
  void check() const;

 private:
  using Trains = std::pair<const at::TensorImpl*, bool>;

  [[nodiscard]] bool is_as_made() const;
  void check_one(const NamedParameter& one, bool trains, const char* kind) const;

  const torch::nn::Module& module_;
  std::vector<std::string> ignored_;
  std::string made_;
  bool with_buffers_;
  std::vector<Trains> as_made_;    // in the order of the modules, tied ones repeatedly
  std::vector<at::Tensor> known_;  // keeps those tensors alive
};

}  // namespace lockstep::modules
