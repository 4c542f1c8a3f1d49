// The names of a module's tensors in files: those of Python's state_dict().
//
// LibTorch's own names are the same, with one exception: a tensor that Python registers under two
// names (a tied weight) is registered once here, because LibTorch's parameters() would list it
// twice and an optimizer would step it twice. Such a module derives from HasAliases, and the
// functions below list the tensor under both names.
//
// No function here is collective. The tensors of a sharded module have no values of their own:
// use state_dict() of its handle.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

// `name` is a second name of the tensor registered as `registered`; both are relative to the
// module.
struct Alias {
  std::string name;
  std::string registered;
};

// A module with tied tensors also derives from this class. It may be nested in a larger module.
class HasAliases {
 public:
  virtual ~HasAliases() = default;
  [[nodiscard]] virtual std::vector<Alias> aliases() const = 0;
};

// Returns all aliases below `module`, with full names.
[[nodiscard]] std::vector<Alias> aliases_of(const torch::nn::Module& module);

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Returns every parameter and buffer under each of its names, in the order of Python's
// state_dict(): a module's own parameters, its own buffers, its children, and then its aliases. The
// tensors share memory with the module (tied ones also with each other) and have no gradient
// history.
[[nodiscard]] std::vector<NamedTensor> named_tensors(const torch::nn::Module& module);

// Returns named_tensors() as a map.
[[nodiscard]] std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module);

// Copies `tensors` into the module, converting dtype and device if they differ. A tied tensor may
// be given under any of its names, or under all of them with equal values. Checks everything first:
// throws BadInput, which names the first tensor that is missing, unknown, of another shape, or tied
// and unequal; in that case nothing is written.
void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep

#pragma GCC visibility pop
