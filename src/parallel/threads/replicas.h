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
  std::vector<at::Tensor> parameters;  // those of the model, in its order
  std::vector<at::Tensor> buffers;
};

// The first one is the model itself; the others have its values now. InvalidArgument as the
// constructor of DataParallel.
[[nodiscard]] std::vector<Replica> make_replicas(const std::shared_ptr<torch::nn::Module>& model,
                                                 std::span<const ComputeDevice> devices,
                                                 const ReplicaOptions& options);

// Every module of the replica trains or evaluates as the model's does.
void follow_training_flags(const torch::nn::Module& model, torch::nn::Module& replica);

// InvalidArgument names a tensor of the model that has another dtype, other sizes or strides than
// that of the replica, or has left `device`.
void check_as_made(const Replica& model, const Replica& replica, c10::Device device,
                   std::span<const std::string> names);

}  // namespace lockstep::threads
