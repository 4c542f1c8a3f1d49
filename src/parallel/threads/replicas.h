// The models of a DataParallel: the user's own on the first device, replicas on the others.
#pragma once

#include <lockstep/parallel/threads/data_parallel.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::threads {

struct Replica {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;  // in the model's order
  std::vector<at::Tensor> buffers;
};

// The first one is the model itself; the others have its current values. Throws InvalidArgument as
// the constructor of DataParallel.
[[nodiscard]] std::vector<Replica> make_replicas(const std::shared_ptr<torch::nn::Module>& model,
                                                 std::span<const ComputeDevice> devices,
                                                 const ReplicaOptions& options);

// Copies the training flag of each module to the replica's.
void follow_training_flags(const torch::nn::Module& model, torch::nn::Module& replica);

// Throws InvalidArgument, which names a tensor of the model whose dtype, sizes or strides differ
// from the replica's, or that is not on `device`.
void check_as_made(const Replica& model, const Replica& replica, c10::Device device,
                   std::span<const std::string> names);

}  // namespace lockstep::threads
