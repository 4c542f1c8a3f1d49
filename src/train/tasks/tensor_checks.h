// Checks of a model file's tensors against its settings (Task::check_tensors()). All throw BadInput
// with one line.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::train {

// Returns the size of one dim of a tensor of two dims.
[[nodiscard]] std::int64_t size_in(const checkpoint::NamedTensors& tensors, const std::string& name,
                                   std::size_t dim);

// Returns the number of distinct layers whose tensors are called prefix + number + suffix.
[[nodiscard]] std::int64_t count_layers(const checkpoint::NamedTensors& tensors,
                                        std::string_view prefix, std::string_view suffix);

// Throws if the entry differs from the value found in the tensors.
void check_entry(std::string_view entry, std::int64_t told, std::int64_t found);

// Throws if the file's tensors have far fewer elements than the settings claim, because a file may
// claim a model that fits no memory. load_into() reports which tensor is missing or too small.
void check_elements(const checkpoint::NamedTensors& tensors, double elements);

}  // namespace lockstep::train
