// Finds the model and the optimizer in a program's nested dicts. The program that writes a file of
// torch.save() or a distributed checkpoint chooses its own structure.
#pragma once

#include "apps/checkpoint/parameter_names.h"
#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/tensor_source.h"

#include <ATen/core/ivalue.h>

#include <cstddef>
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

  // Returns the place of the model: "model", or empty if the whole content is the model. `key` is
  // the user's choice; if empty, the usual names are tried. BadInput lists the available keys.
  [[nodiscard]] std::string model_place(const std::string& key) const;
  [[nodiscard]] checkpoint::TensorSources tensors_below(const std::string& place) const;

  // Returns names of tensors that are tied to an earlier tensor; a distributed checkpoint does not
  // record ties.
  [[nodiscard]] std::set<std::string> tied_below(const std::string& place) const;
  // Returns true if there is something beside the tensors at `place`.
  [[nodiscard]] bool has_more_than(const std::string& place) const;

  // Returns the optimizer's state for the model at `model`, with names such as
  // "optimizer.fc.weight.exp_avg". Numbered parameters get the names in the file `parameters` if
  // one is given, otherwise those in the state_dict (param_names), otherwise those of
  // names_by_order(); the last case is reported in `assumed`.
  [[nodiscard]] checkpoint::TensorSources optimizer_state(const std::string& key,
                                                          const std::string& model,
                                                          const std::string& parameters,
                                                          std::string& assumed) const;

 private:
  // One value in the nested dicts that is not a dict or a list.
  struct Leaf {
    std::vector<std::string> path;
    std::optional<checkpoint::TensorSource> tensor;
    std::function<c10::IValue()> value;
    std::string memory;  // equal for tied tensors; empty for a distributed checkpoint
  };

  void add(std::vector<std::string> path, const c10::IValue& value);
  // Returns true if the joined path of a leaf begins with `place` and a dot. Unlike for
  // has_level(), one key with dots in it, "model.fc.weight", counts.
  [[nodiscard]] bool has_below(const std::string& place) const;
  // Returns true if there is a dict at `place`.
  [[nodiscard]] bool has_level(const std::string& place) const;
  // Returns true if the names of all tensors begin with a usual place, which is then not a part of
  // the model's own names: some are an optimizer's, there are other values than tensors, or all are
  // of a DistributedDataParallel.
  [[nodiscard]] bool has_only_usual_places() const;
  [[nodiscard]] std::string find_place(const std::string& key,
                                       const std::vector<std::string>& usual,
                                       const char* what) const;
  [[nodiscard]] std::string tops() const;
  // The optimizer's parameters in the order of its groups, and the names in the groups.
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
  std::vector<Leaf> leaves_;    // in the order of the file
  std::size_t values_ = 0;      // dicts, lists and leaves that were added
  std::size_t path_bytes_ = 0;  // of all paths: a shared dict has one for each of its places
};

}  // namespace lockstep::apps
