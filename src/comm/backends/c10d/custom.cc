#include "comm/backends/c10d/make.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/backends/c10d/store_adapter.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <utility>

namespace lockstep::c10d_backend {
namespace {

class CustomConnection final : public C10dConnection {
 public:
  CustomConnection(MakeC10dBackend make, std::string name, std::optional<at::Device> device,
                   std::shared_ptr<Store> store, const std::string& group, int rank, int size,
                   Duration timeout)
      : make_(std::move(make)), name_(std::move(name)), device_(device), store_(std::move(store)) {
    auto part = as_c10d_store(store_, formatted("lockstep/{}/{}/", name_, group));
    try {
      group_ = make_(part, rank, size, timeout);
    } catch (const c10::Error& error) {
      throw PeerLost(formatted("rank {} of {} could not make the backend {}: {}", rank, size, name_,
                               first_line(error.what_without_backtrace())));
    }
    check(group_.defined(), "the backend {}: nothing was made", name_);
  }

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] CallRoute route_of(const PostedCall& call) override { return {*group_, call.root}; }
  [[nodiscard]] std::string objection_to(const at::Tensor& tensor) override {
    return device_ ? not_on_device(tensor, *device_) : std::string();
  }
  [[nodiscard]] std::optional<at::Device> device() override { return device_; }
  [[nodiscard]] bool has_streams() const override { return device_.has_value(); }
  void mark_next(std::uint32_t) override {}

  void close(const std::function<bool()>&) noexcept override {
    try {
      group_->abort();
    } catch (const std::exception&) {
      // The backend does not implement abort(), or nothing was running.
    }
  }

  [[nodiscard]] std::shared_ptr<C10dConnection> make_group(const std::string& name, int rank,
                                                           int size, Duration timeout) override {
    return std::make_shared<CustomConnection>(make_, name_, device_, store_, name, rank, size,
                                              timeout);
  }

 private:
  MakeC10dBackend make_;
  std::string name_;
  std::optional<at::Device> device_;  // of a backend on streams; all tensors must be on it
  std::shared_ptr<Store> store_;
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace

std::shared_ptr<C10dConnection> make_custom(const MakeC10dBackend& make, const std::string& name,
                                            std::optional<c10::Device> streams_of,
                                            std::shared_ptr<Store> store, const std::string& group,
                                            int rank, int size, Duration timeout) {
  return std::make_shared<CustomConnection>(make, name, streams_of, std::move(store), group, rank,
                                            size, timeout);
}

}  // namespace lockstep::c10d_backend
