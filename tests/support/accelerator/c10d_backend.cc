#include "support/accelerator/c10d_backend.h"

#include "support/accelerator/communicator.h"
#include "support/accelerator/device.h"
#include "support/accelerator/tensors.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test::accelerator {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// A copy to make after a call: to a host tensor, or to one tensor of a list.
struct CopyBack {
  at::Tensor target;
  at::Tensor source;
};

// The end of a call. wait() makes the current stream wait for it or, for a barrier, blocks the
// host.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(std::shared_ptr<Communicator> communicator, c10::Stream stream, Tensors kept,
             std::vector<CopyBack> to_host, bool blocks, Omission omission)
      : communicator_(std::move(communicator)),
        stream_(stream),
        end_(stream.device_type()),
        kept_(std::move(kept)),
        to_host_(std::move(to_host)),
        blocks_(blocks),
        omission_(omission) {
    end_.record(stream);
  }
  bool isCompleted() override { return end_.query(); }
  std::exception_ptr exception() const override {
    if (!communicator_->is_broken()) return nullptr;
    return std::make_exception_ptr(std::runtime_error("the communicator was aborted"));
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    if (blocks_)
      end_.synchronize();
    else if (omission_ != Omission::wait_for_call)
      current_stream(stream_.device()).wait(end_);
    const c10::StreamGuard guard(stream_);
    for (const CopyBack& copy : to_host_) copy.target.copy_(copy.source);  // blocks
    to_host_.clear();
    kept_.clear();
  }

 private:
  std::shared_ptr<Communicator> communicator_;
  c10::Stream stream_;
  c10::Event end_;
  Tensors kept_;  // until the call is ordered before a stream that may free them
  std::vector<CopyBack> to_host_;
  bool blocks_;  // the host, as NCCL's barrier does
  Omission omission_;
};

// Throws if a rank expects another number of bytes than it gets: ranks may disagree after a wait is
// left out.
void check_bytes(const RankBytes& part, std::size_t bytes) {
  TORCH_CHECK(part.output == nullptr || part.output_bytes == bytes, "a rank expects ",
              part.output_bytes, " bytes and gets ", bytes);
}

// Rounds at every addition, as a backend may.
template <typename Value>
void add_up(const std::vector<RankBytes>& parts) {
  const std::size_t bytes = parts.front().input_bytes;
  std::vector<Value> sum(bytes / sizeof(Value));
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    TORCH_CHECK(parts[rank].input_bytes == bytes, "ranks add ", bytes, " and ",
                parts[rank].input_bytes, " bytes");
    check_bytes(parts[rank], bytes);
    const auto* values = static_cast<const Value*>(parts[rank].input);
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = rank == 0 ? values[i] : sum[i] + values[i];
  }
  for (const RankBytes& part : parts)
    if (part.output != nullptr) std::memcpy(part.output, sum.data(), part.output_bytes);
}

CollectiveKernel sum_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return &add_up<float>;
    case at::kDouble:
      return &add_up<double>;
    case at::kInt:
      return &add_up<std::int32_t>;
    case at::kLong:
      return &add_up<std::int64_t>;
    case at::kBFloat16:
      return &add_up<c10::BFloat16>;
    case at::kHalf:
      return &add_up<c10::Half>;
    default:
      TORCH_CHECK(false, "the simulated accelerator cannot add ", dtype);
  }
}

void copy_from_root(const std::vector<RankBytes>& parts, int root) {
  for (const RankBytes& part : parts) check_bytes(part, parts[root].input_bytes);
  for (const RankBytes& part : parts)
    if (part.output != nullptr) std::memcpy(part.output, parts[root].input, part.output_bytes);
}

// Copies all inputs, one after the other, to every rank that has an output.
void gather_all(const std::vector<RankBytes>& parts) {
  std::size_t bytes = 0;
  for (const RankBytes& part : parts) bytes += part.input_bytes;
  for (const RankBytes& part : parts) {
    check_bytes(part, bytes);
    auto* output = static_cast<char*>(part.output);
    for (const RankBytes& other : parts) {
      if (output == nullptr) break;
      std::memcpy(output, other.input, other.input_bytes);
      output += other.input_bytes;
    }
  }
}

// Copies to rank r the bytes that each rank has for it, in rank order.
void exchange_all(const std::vector<RankBytes>& parts) {
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    std::size_t bytes = 0;
    for (const RankBytes& other : parts) bytes += other.input_counts[rank];
    TORCH_CHECK(parts[rank].output != nullptr || bytes == 0, "rank ", rank, " takes nothing");
    check_bytes(parts[rank], bytes);
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    auto* output = static_cast<char*>(parts[rank].output);
    for (const RankBytes& other : parts) {
      const auto begin = other.input_counts.begin();
      const auto offset =
          std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(rank), std::size_t{0});
      if (other.input_counts[rank] == 0) continue;
      std::memcpy(output, static_cast<const char*>(other.input) + offset, other.input_counts[rank]);
      output += other.input_counts[rank];
    }
  }
}

void scatter_from(const std::vector<RankBytes>& parts, int root) {
  std::size_t bytes = 0;
  for (const RankBytes& part : parts) bytes += part.output_bytes;
  TORCH_CHECK(bytes == parts[root].input_bytes, "ranks expect ", bytes, " bytes and get ",
              parts[root].input_bytes);
  const auto* input = static_cast<const char*>(parts[root].input);
  for (const RankBytes& part : parts) {
    std::memcpy(part.output, input, part.output_bytes);
    input += part.output_bytes;
  }
}

// Returns the communicator of this process with the name that its ranks agreed on.
std::shared_ptr<Communicator> communicator_of(const std::string& name, int size) {
  static std::mutex mutex;
  static auto& all =
      *std::make_unique<std::map<std::string, std::shared_ptr<Communicator>>>().release();
  const std::lock_guard lock(mutex);
  auto& communicator = all[name];
  if (!communicator) communicator = std::make_shared<Communicator>(size, name);
  return communicator;
}

std::array<std::atomic<int>, device_count>& communicator_counts() {
  static std::array<std::atomic<int>, device_count> counts{};
  return counts;
}

int next_number() {
  static std::atomic<int> number{0};
  return ++number;
}

class DeviceBackend final : public c10d::Backend {
 public:
  DeviceBackend(std::string name, int rank, int size, c10::Device device, Omission omission)
      : Backend(rank, size), name_(std::move(name)), device_(device), omission_(omission) {
    (void)channel("all", size);
  }

  const std::string getBackendName() const override { return "sim"; }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "only sums");
    RankCall call(*this, tensors.at(0), tensors.at(0));
    return call.launch("all_reduce " + text_of(tensors[0]), sum_of(tensors[0].scalar_type()));
  }
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "only sums");
    const bool is_root = getRank() == options.rootRank;
    RankCall call(*this, tensors.at(0), is_root ? tensors[0] : at::Tensor());
    return call.launch("reduce " + text_of(tensors[0]) + of_root(options.rootRank),
                       sum_of(tensors[0].scalar_type()));
  }
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool is_root = getRank() == options.rootRank;
    RankCall call(*this, is_root ? tensors.at(0) : at::Tensor(),
                  is_root ? at::Tensor() : tensors.at(0));
    return call.launch("broadcast " + text_of(tensors[0]) + of_root(options.rootRank),
                       [root = static_cast<int>(options.rootRank)](const auto& parts) {
                         copy_from_root(parts, root);
                       });
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions&) override {
    RankCall call(*this, inputs.at(0), {});
    call.gather_into(outputs.at(0));
    return call.launch("all_gather " + text_of(inputs[0]), &gather_all);
  }
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    RankCall call(*this, inputs.at(0), {});
    if (getRank() == options.rootRank) call.gather_into(outputs.at(0));
    return call.launch("gather " + text_of(inputs[0]) + of_root(options.rootRank), &gather_all);
  }
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    at::Tensor all;
    if (getRank() == options.rootRank) {
      Tensors flat;
      for (const auto& input : inputs.at(0)) flat.push_back(input.view({-1}));
      all = at::cat(flat);
    }
    RankCall call(*this, all, outputs.at(0));
    return call.launch("scatter " + text_of(outputs[0]) + of_root(options.rootRank),
                       [root = static_cast<int>(options.rootRank)](const auto& parts) {
                         scatter_from(parts, root);
                       });
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>&,
                            std::vector<std::int64_t>& input_counts,
                            const c10d::AllToAllOptions&) override {
    RankCall call(*this, input, output);
    for (int rank = 0; rank < getSize(); ++rank) {
      const auto rows = input_counts.empty() ? input.numel() / getSize() : input_counts.at(rank);
      call.part.input_counts.push_back(rows * input.element_size());
    }
    return call.launch("all_to_all", &exchange_all);
  }
  WorkPointer send(Tensors& tensors, int target, int) override {
    RankCall call(*this, tensors.at(0), {}, message_channel(getRank(), target), 0);
    return call.launch("message " + text_of(tensors[0]), &copy_message);
  }
  WorkPointer recv(Tensors& tensors, int source, int) override {
    RankCall call(*this, {}, tensors.at(0), message_channel(source, getRank()), 1);
    return call.launch("message " + text_of(tensors[0]), &copy_message);
  }
  WorkPointer barrier(const c10d::BarrierOptions&) override {
    RankCall call(*this, {}, {});
    call.blocks = true;
    return call.launch("barrier", [](const auto&) {});
  }
  void abort() override {
    const std::lock_guard lock(mutex_);
    for (auto& [name, channel] : channels_) channel.communicator->abort();
  }

 private:
  struct Channel {
    std::shared_ptr<Communicator> communicator;
    c10::Stream stream;
  };

  // One call of this rank: its tensors on the device, and the copies that it needs.
  struct RankCall {
    RankCall(DeviceBackend& owner, const at::Tensor& input, const at::Tensor& output)
        : RankCall(owner, input, output, owner.channel("all", owner.getSize()), owner.getRank()) {}
    RankCall(DeviceBackend& owner, const at::Tensor& input, const at::Tensor& output, Channel where,
             int number)
        : backend(owner), channel(std::move(where)), rank(number) {
      uses_device = is_on_accelerator(input) || is_on_accelerator(output);
      const c10::OptionalStreamGuard guard(
          uses_device ? std::nullopt : std::optional<c10::Stream>(channel.stream));
      if (input.defined()) source = on_device(input, false);
      if (output.defined()) target = output.is_same(input) ? source : on_device(output, true);
      if (output.defined() && output.is_same(input)) note_copy_back(output);
      if (source.defined()) {
        part.input = source.data_ptr();
        part.input_bytes = source.nbytes();
      }
      if (target.defined()) {
        part.output = target.data_ptr();
        part.output_bytes = target.nbytes();
      }
      kept = {source, target, input, output};
    }

    at::Tensor on_device(const at::Tensor& tensor, bool is_output) {
      TORCH_CHECK(tensor.is_contiguous(), "a tensor of a collective must be contiguous");
      if (is_on_accelerator(tensor)) {
        TORCH_CHECK(tensor.device() == backend.device_, "a tensor is on ", tensor.device(),
                    ", the rank works on ", backend.device_);
        return tensor;
      }
      if (!is_output) return tensor.to(backend.device_);
      auto there = at::empty(tensor.sizes(), tensor.options().device(backend.device_));
      to_host.push_back({tensor, there});
      return there;
    }
    void note_copy_back(const at::Tensor& output) {
      if (!is_on_accelerator(output)) to_host.push_back({output, source});
    }
    // Receives every rank's input, and copies each to its tensor.
    void gather_into(const Tensors& targets) {
      const c10::StreamGuard guard(channel.stream);
      target =
          at::empty({source.numel() * static_cast<std::int64_t>(targets.size())}, source.options());
      part.output = target.data_ptr();
      part.output_bytes = target.nbytes();
      kept.push_back(target);
      std::int64_t begin = 0;
      for (const at::Tensor& one : targets) {
        const auto piece = target.narrow(0, begin, one.numel()).view(one.sizes());
        (is_on_accelerator(one) ? after : to_host).push_back({one, piece});
        begin += one.numel();
      }
    }
    WorkPointer launch(const std::string& signature, CollectiveKernel kernel) {
      c10::Event ready(device_type);
      ready.record(current_stream(backend.device_));
      if (uses_device && backend.omission_ != Omission::wait_for_caller) channel.stream.wait(ready);
      channel.communicator->launch(rank, actor_of(channel.stream), signature, part,
                                   std::move(kernel));
      const c10::StreamGuard guard(channel.stream);
      for (const CopyBack& copy : after) copy.target.copy_(copy.source);
      for (const CopyBack& copy : after) kept.push_back(copy.target);
      return c10::make_intrusive<DeviceWork>(channel.communicator, channel.stream, std::move(kept),
                                             std::move(to_host), blocks, backend.omission_);
    }

    DeviceBackend& backend;
    Channel channel;
    int rank;
    bool uses_device = false;  // else the call does not concern the current stream
    bool blocks = false;
    at::Tensor source, target;
    RankBytes part;
    Tensors kept;
    std::vector<CopyBack> after;    // on the call's stream
    std::vector<CopyBack> to_host;  // when the call is waited for
  };

  static void copy_message(const std::vector<RankBytes>& parts) { copy_from_root(parts, 0); }
  static std::string text_of(const at::Tensor& tensor) {
    return std::string(toString(tensor.scalar_type())) + " x " + std::to_string(tensor.numel());
  }
  static std::string of_root(std::int64_t root) { return ", root " + std::to_string(root); }
  Channel channel(const std::string& what, int size) {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.find(what);
    if (found != channels_.end()) return found->second;
    ++communicator_counts().at(device_.index());
    Channel made{communicator_of(name_ + " " + what, size), new_stream(device_)};
    return channels_.emplace(what, made).first->second;
  }
  Channel message_channel(int source, int target) {
    return channel(std::to_string(source) + " to " + std::to_string(target), 2);
  }

  std::string name_;
  c10::Device device_;
  Omission omission_;
  std::mutex mutex_;
  std::map<std::string, Channel> channels_;
};

}  // namespace

int communicators_of(c10::Device device) { return communicator_counts().at(device.index()); }

MakeC10dBackend make_backends(c10::Device device, Omission omission) {
  return [device, omission](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            Duration) -> c10::intrusive_ptr<c10d::Backend> {
    const std::string key = "communicator";
    if (rank == 0) store->set(key, "group " + std::to_string(next_number()));
    const auto name = store->get(key);
    return c10::make_intrusive<DeviceBackend>(std::string(name.begin(), name.end()), rank, size,
                                              device, omission);
  };
}

}  // namespace lockstep::test::accelerator
