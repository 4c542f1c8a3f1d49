// The names under which a module's tensors leave and enter files: those of Python's state_dict().
//
// LibTorch's own names are the same, but for one thing: a tensor that Python registers under two
// names (a tied weight) is registered once here, because LibTorch's parameters() would list it
// twice and an optimizer would step it twice. A module says so through HasAliases, and the
// functions below give such a tensor both names.
//
// All of them are local. A sharded module's tensors have no values of their own: its handle has a
// state_dict().
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

// `name` is a second name of the tensor that is registered as `registered`; both are relative to
// the module.
struct Alias {
  std::string name;
  std::string registered;
};

// A module with tied tensors derives from this too. It may sit anywhere inside a larger module.
class HasAliases {
 public:
  virtual ~HasAliases() = default;
  [[nodiscard]] virtual std::vector<Alias> aliases() const = 0;
};

// All aliases below `module`, with full names.
[[nodiscard]] std::vector<Alias> aliases_of(const torch::nn::Module& module);

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Every parameter and buffer under each of its names, in the order of Python's state_dict(): a
// module's own parameters, its own buffers, its children, and then its aliases. The tensors share
// memory with the module (and with each other where they are tied), and carry no gradient history.
[[nodiscard]] std::vector<NamedTensor> named_tensors(const torch::nn::Module& module);

// The same by name.
[[nodiscard]] std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module);

// Writes `tensors` into the module's, converting dtype and device where they differ. A tied tensor
// may come under any of its names, or under all of them with equal values. Everything is checked
// first: BadInput names the first tensor that is missing, unknown, of another shape, or tied and
// unequal, and then nothing was written.
void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& tensors);

}  // namespace lockstep

#pragma GCC visibility pop
