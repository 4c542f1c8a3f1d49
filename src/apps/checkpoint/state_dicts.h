// Which of a program's own nest of dicts is the model, which the optimizer: files of torch.save()
// and distributed checkpoints leave that to the program that wrote them.
#pragma once

#include "apps/checkpoint/parameter_names.h"
#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/tensor_source.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::apps {

class StateDicts {
 public:
  StateDicts(std::filesystem::path path, const c10::IValue& value);
  StateDicts(std::filesystem::path path,
             const std::shared_ptr<const checkpoint::DistributedFolder>& folder);

  // "model", or empty where all of it is the model's. `key`: what the user says; empty: one of the
  // usual names. BadInput names what there is.
  [[nodiscard]] std::string model_place(const std::string& key) const;
  [[nodiscard]] checkpoint::TensorSources tensors_below(const std::string& place) const;

  // Names of tensors that are tied to an earlier one; a distributed checkpoint does not say which.
  [[nodiscard]] std::set<std::string> tied_below(const std::string& place) const;
  [[nodiscard]] bool has_extra_state() const;

  // "optimizer.fc.weight.exp_avg", of a model that lies at `model`. Parameters that have numbers
  // get the names in the file `parameters`, if one is given, else those in the state_dict
  // (param_names), else those of names_by_order(); the latter is said in `assumed`.
  [[nodiscard]] checkpoint::TensorSources optimizer_state(const std::string& key,
                                                          const std::string& model,
                                                          const std::string& parameters,
                                                          std::string& assumed) const;

 private:
  // One value of the nest that is not a dict or a list.
  struct Leaf {
    std::vector<std::string> path;
    std::optional<checkpoint::TensorSource> tensor;
    std::function<c10::IValue()> value;
    std::string memory;  // equal for tied tensors; empty in a distributed checkpoint
  };

  void add(std::vector<std::string> path, const c10::IValue& value);
  [[nodiscard]] bool has_below(const std::string& place, bool tensors) const;
  [[nodiscard]] std::string find_place(const std::string& key,
                                       const std::vector<std::string>& usual,
                                       const char* what) const;
  [[nodiscard]] std::string tops() const;
  // The optimizer's parameters in the order of its groups, and the names that the groups have.
  struct Numbered {
    std::vector<NumberedParameter> parameters;
    std::vector<std::string> names;
  };
  [[nodiscard]] Numbered numbered(const std::string& optimizer) const;
  void add_sizes(const std::string& optimizer, std::vector<NumberedParameter>& parameters) const;
  [[nodiscard]] std::vector<NamedSizes> parameters_of(const std::string& model) const;
  [[nodiscard]] std::map<std::string, std::string> names_of(const std::string& optimizer,
                                                            const std::string& model,
                                                            const std::string& parameters,
                                                            std::string& assumed) const;
  [[nodiscard]] checkpoint::TensorSource field_of(const Leaf& leaf, const std::string& field) const;

  const std::filesystem::path path_;
  std::vector<Leaf> leaves_;  // in the file's order
};

}  // namespace lockstep::apps
