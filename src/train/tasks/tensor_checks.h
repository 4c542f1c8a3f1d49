// What the tensors of a model file say about the settings that stand beside them
// (Task::check_tensors()). All throw BadInput in one line.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::train {

// The size in one dim of a tensor of two.
[[nodiscard]] std::int64_t size_in(const checkpoint::NamedTensors& tensors, const std::string& name,
                                   std::size_t dim);

// How many numbers there are of layers whose tensors are called prefix + number + suffix.
[[nodiscard]] std::int64_t count_layers(const checkpoint::NamedTensors& tensors,
                                        std::string_view prefix, std::string_view suffix);

// The entry says what the tensors say.
void check_entry(std::string_view entry, std::int64_t told, std::int64_t found);

// A file may claim a model that no memory holds: it must have tensors of about that size itself.
// load_into() says which of them is missing or too small.
void check_elements(const checkpoint::NamedTensors& tensors, double elements);

}  // namespace lockstep::train
