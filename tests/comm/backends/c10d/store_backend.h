// A c10d backend for tests, which does everything through the store passed to it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

// Work that is complete as soon as it is created.
class CompleteWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

// A group of Lockstep needs only gathers for small reductions other than sums.
class StoreBackend : public c10d::Backend {
 public:
  StoreBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : c10d::Backend(rank, size), store_(std::move(store)) {}

  const std::string getBackendName() const override { return "by store"; }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    const auto own = publish(inputs[0]);
    for (int rank = 0; rank < getSize(); ++rank) {
      auto value = store_->get(own + std::to_string(rank));
      std::memcpy(outputs[0][rank].mutable_data_ptr(), value.data(), value.size());
    }
    return c10::make_intrusive<CompleteWork>();
  }

 protected:
  // An all_to_all of bytes in which all ranks split their input in the same way.
  c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& output, const at::Tensor& input,
                                          const std::vector<std::int64_t>& output_counts,
                                          const std::vector<std::int64_t>& input_counts) {
    const auto own = publish(input);
    std::int64_t begin = 0, at = 0;
    for (int rank = 0; rank < getRank(); ++rank) begin += input_counts[rank];
    for (int rank = 0; rank < getSize(); ++rank) {
      auto value = store_->get(own + std::to_string(rank));
      std::memcpy(static_cast<char*>(output.mutable_data_ptr()) + at, value.data() + begin,
                  output_counts[rank]);
      at += output_counts[rank];
    }
    return c10::make_intrusive<CompleteWork>();
  }

 private:
  // Publishes this rank's value for the round; returns the key prefix of the round.
  std::string publish(const at::Tensor& tensor) {
    auto round = std::to_string(++rounds_) + "/";
    const auto* bytes = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
    store_->set(round + std::to_string(getRank()),
                std::vector<std::uint8_t>(bytes, bytes + tensor.nbytes()));
    return round;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rounds_ = 0;
};

}  // namespace lockstep::test
