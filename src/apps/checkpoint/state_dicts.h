// Which of a program's own nest of dicts is the model, which the optimizer: files of torch.save()
// and distributed checkpoints leave that to the program that wrote them.
#pragma once

#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/tensor_source.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

  // "optimizer.fc.weight.exp_avg", of a model that lies at `model`. Parameters that have numbers
  // get the names that the file gives them (param_names), or those of the model's tensors in their
  // order, where as many are no buffers. BadInput where it cannot be known.
  [[nodiscard]] checkpoint::TensorSources optimizer_state(const std::string& key,
                                                          const std::string& model) const;

 private:
  // One value of the nest that is not a dict or a list.
  struct Leaf {
    std::vector<std::string> path;
    std::optional<checkpoint::TensorSource> tensor;
    std::function<c10::IValue()> value;
  };

  void add(std::vector<std::string> path, const c10::IValue& value);
  [[nodiscard]] bool has_below(const std::string& place, bool tensors) const;
  [[nodiscard]] std::string find_place(const std::string& key,
                                       const std::vector<std::string>& usual,
                                       const char* what) const;
  [[nodiscard]] std::string tops() const;
  [[nodiscard]] std::vector<std::string> texts_at(const std::vector<std::string>& path) const;
  [[nodiscard]] std::map<std::string, std::string> names_of_numbers(const std::string& optimizer,
                                                                    const std::string& model) const;

  const std::filesystem::path path_;
  std::vector<Leaf> leaves_;  // in the file's order
};

}  // namespace lockstep::apps
