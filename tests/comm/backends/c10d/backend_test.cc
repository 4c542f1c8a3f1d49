// The calls that C10dBackend passes to a backend with a device of its own, such as NCCL. Here one
// rank uses a device that the tests define.
#include "comm/backends/c10d/backend.h"

#include "comm/backends/c10d/store_backend.h"
#include "support/torch/late_device.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace lockstep;

namespace {

// A backend of one rank: the output is a copy of the input, made on the current stream.
class WholeBackend final : public c10d::Backend {
 public:
  WholeBackend() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "whole"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return copied(output, input, "all_gather");
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions&) override {
    return copied(output, input, "reduce_scatter");
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int peer, int) override {
    calls.push_back("send to " + std::to_string(peer));
    return c10::make_intrusive<test::CompleteWork>();
  }

  std::vector<std::string> calls;

 private:
  c10::intrusive_ptr<c10d::Work> copied(at::Tensor& output, const at::Tensor& input,
                                        const char* call) {
    EXPECT_EQ(output.device(), test::late_device());
    EXPECT_EQ(input.device(), test::late_device());
    calls.emplace_back(call);
    output.copy_(input);
    return c10::make_intrusive<test::CompleteWork>();
  }
};

class WholeConnection final : public c10d_backend::C10dConnection {
 public:
  [[nodiscard]] std::string_view name() const override { return "whole"; }
  [[nodiscard]] c10d_backend::CallRoute route_of(const PostedCall& call) override {
    return {*backend_, is_message(call.collective) ? 7 : -1};
  }
  [[nodiscard]] std::optional<at::Device> device() override { return test::late_device(); }
  [[nodiscard]] bool works_on_wholes() const override { return true; }
  void mark_next(std::uint32_t) override {}
  void close(const std::function<bool()>&) noexcept override {}
  [[nodiscard]] std::shared_ptr<C10dConnection> make_group(const std::string&, int, int,
                                                           Duration) override {
    return nullptr;
  }
  [[nodiscard]] const std::vector<std::string>& calls() const { return backend_->calls; }

 private:
  c10::intrusive_ptr<WholeBackend> backend_ = c10::make_intrusive<WholeBackend>();
};

struct OneRank {
  std::shared_ptr<WholeConnection> connection = std::make_shared<WholeConnection>();
  c10d_backend::C10dBackend runner{connection, nullptr, 0, 1, {}};
  void run(Call call) {
    call.elements = call.input.numel();
    runner.run(PostedCall(call));
  }
};

TEST(C10dBackend, TensorsOfTheHostAreCopiedToTheBackendsDeviceAndBack) {
  OneRank rank;
  const auto input = at::arange(4, at::kFloat);
  auto output = at::zeros({4});
  rank.run({{.collective = Collective::all_gather}, input, output});
  EXPECT_TRUE(output.is_cpu());
  EXPECT_TRUE(output.equal(input));
  EXPECT_EQ(rank.connection->calls(), std::vector<std::string>{"all_gather"});
}

TEST(C10dBackend, TensorsOfTheDeviceStayThere) {
  OneRank rank;
  auto input = test::on_late_device(at::zeros({3}));
  auto output = test::on_late_device(at::zeros({3}));
  test::fill_later(input, 5);
  rank.run({{.collective = Collective::reduce_scatter}, input, output});
  EXPECT_EQ(test::late_value(output, 2), 5);
  EXPECT_EQ(rank.connection->calls(), std::vector<std::string>{"reduce_scatter"});
}

TEST(C10dBackend, AMessageGoesToThePeerAsItsCarrierNumbersIt) {
  OneRank rank;
  rank.run({{.collective = Collective::send, .root = 3}, at::full({2}, 1.0f)});
  EXPECT_EQ(rank.connection->calls(), std::vector<std::string>{"send to 7"});
}

}  // namespace
