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
  CustomConnection(std::string name, std::shared_ptr<Store> store, const std::string& group,
                   int rank, int size, BackendOptions options)
      : name_(std::move(name)), store_(std::move(store)), options_(std::move(options)) {
    auto part =
        as_c10d_store(store_, formatted("lockstep/{}/{}/", name_, group), options_.join_timeout);
    try {
      group_ = options_.c10d(part, rank, size, options_.join_timeout);
    } catch (const c10::Error& error) {
      throw PeerLost(formatted("rank {} of {} could not make the backend {}: {}", rank, size, name_,
                               first_line(error.what_without_backtrace())));
    }
    check(group_.defined(), "the backend {}: nothing was made", name_);
  }

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] CallRoute route_of(const PostedCall& call) override { return {*group_, call.root}; }
  [[nodiscard]] std::string objection_to(const at::Tensor& tensor) override {
    return has_streams() ? C10dConnection::objection_to(tensor) : std::string();
  }
  // Tensors of a backend on streams must be on this rank's device.
  [[nodiscard]] std::optional<at::Device> device() override {
    return has_streams() ? options_.device : std::nullopt;
  }
  [[nodiscard]] bool has_streams() const override {
    return options_.c10d_streams && options_.device;
  }
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
    auto options = options_;
    options.join_timeout = timeout;
    return make_custom(name_, store_, name, rank, size, options);
  }

 private:
  std::string name_;
  std::shared_ptr<Store> store_;
  BackendOptions options_;
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace

std::shared_ptr<C10dConnection> make_custom(std::string name, std::shared_ptr<Store> store,
                                            const std::string& group, int rank, int size,
                                            const BackendOptions& options) {
  return std::make_shared<CustomConnection>(std::move(name), std::move(store), group, rank, size,
                                            options);
}

}  // namespace lockstep::c10d_backend
