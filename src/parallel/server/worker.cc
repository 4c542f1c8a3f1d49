#include <lockstep/parallel/server/worker.h>

#include "base/check.h"
#include "base/format.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/server/connection.h"
#include "parallel/server/key_plan.h"

#include <lockstep/layout/name_pattern.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::ps {
namespace {

// A trained parameter, and its key at the beginning.
struct TrainedParameter {
  at::Tensor tensor;
  Key key;
  at::Tensor pulled;  // by rows: one bool per row, whether its value is current
};

// The non-zero rows of a dense or sparse gradient: their indices (int64), unique and sorted, and
// their values, on the host.
struct GradientRows {
  at::Tensor rows, values;
};

void check_sendable(const char* kind, const std::string& name, const at::Tensor& tensor) {
  check(!dispatch::is_lazy(tensor), "parameter server: {} {} is sharded or deferred", kind, name);
  check(!tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
            !tensor.is_meta() && !tensor.is_inference(),
        "parameter server: {} {} is not a dense tensor, so it cannot be sent", kind, name);
}

Key key_of(const std::string& name, const at::Tensor& tensor) {
  return {.name = name,
          .dtype = static_cast<int>(tensor.scalar_type()),
          .element_bytes = static_cast<std::int64_t>(tensor.element_size()),
          .sizes = tensor.sizes().vec()};
}

Key trained_key(const NamedParameter& parameter, const std::vector<std::string>& by_rows) {
  Key key = key_of(parameter.name, parameter.tensor);
  key.by_rows = modules::is_ignored(parameter, by_rows);
  check(!key.by_rows || (!key.sizes.empty() && parameter.tensor.numel() > 0),
        "parameter server: {} has no rows that could be pulled separately", key.name);
  return key;
}

// A tensor's elements, row-major, as bytes of the host.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous().view({-1}).view(at::kByte);
}

GradientRows rows_with_gradient(const at::Tensor& gradient) {
  if (gradient.is_sparse()) {
    at::Tensor summed = gradient.detach().coalesce();
    return {summed.indices().select(0, 0).to(at::kCPU).contiguous(),
            summed.values().to(at::kCPU).contiguous()};
  }
  at::Tensor dense = gradient.detach();
  at::Tensor rows = at::nonzero((dense != 0).reshape({dense.size(0), -1}).any(1)).flatten();
  return {rows.to(at::kCPU), dense.index_select(0, rows).to(at::kCPU).contiguous()};
}

class WorkerKeys {
 public:
  // Throws InvalidArgument, which names a tensor that cannot be sent, a pattern that matches
  // nothing, or a parameter by rows that has no rows.
  WorkerKeys(const torch::nn::Module& module, const std::vector<std::string>& by_rows) {
    modules::ModuleTensors tensors = modules::tensors_of(module);
    std::vector<std::string> names;
    for (const NamedParameter& parameter : tensors.parameters) {
      check_sendable("parameter", parameter.name, parameter.tensor);
      check(!parallel::is_hooked(parameter.tensor),
            "parameter server: {} belongs to another handle, which reduces its gradients already",
            parameter.name);
      if (!parameter.tensor.requires_grad()) {
        add_constant(parameter.name, parameter.tensor);
        continue;
      }
      for (std::string& name : modules::names_of(parameter)) names.push_back(std::move(name));
      TrainedParameter& one = trained_.emplace_back();
      one.tensor = parameter.tensor;
      one.key = trained_key(parameter, by_rows);
      if (one.key.by_rows) one.pulled = at::zeros({one.key.rows()}, at::kBool);
    }
    layout::check_patterns("pattern of parameters by rows", by_rows, names);
    for (const NamedTensor& buffer : tensors.buffers) {
      check_sendable("buffer", buffer.name, buffer.tensor);
      modules::check_buffer(buffer.name, buffer.tensor, "parameter server");
      add_constant(buffer.name, buffer.tensor);
    }
  }

  [[nodiscard]] std::vector<TrainedParameter>& trained() { return trained_; }

  [[nodiscard]] TrainedParameter& trained(const Piece& piece) {
    return trained_[static_cast<std::size_t>(piece.key)];
  }

  [[nodiscard]] std::vector<Key> keys() const {
    std::vector<Key> keys;
    for (const TrainedParameter& one : trained_) keys.push_back(one.key);
    return keys;
  }

  // The keys of frozen parameters and buffers, which must be the same on all workers.
  [[nodiscard]] const std::vector<Key>& constant_keys() const { return constant_keys_; }

  // Throws InvalidArgument if a trained parameter has changed its size or dtype.
  void check_unchanged() const {
    for (const auto& [tensor, key, pulled] : trained_)
      check(tensor.sizes() == at::IntArrayRef(key.sizes) &&
                static_cast<int>(tensor.scalar_type()) == key.dtype && tensor.requires_grad(),
            "parameter server: {} has changed since the worker was made, when it was {} [{}]{}",
            key.name, c10::toString(tensor.scalar_type()), listed(tensor.sizes(), ", "),
            tensor.requires_grad() ? "" : " without gradient");
  }

  // Converts frozen parameters and buffers to one message, and back.
  [[nodiscard]] at::Tensor constants() const {
    std::vector<at::Tensor> all{at::empty({0}, at::kByte)};
    for (const at::Tensor& tensor : constants_)
      if (tensor.numel() > 0) all.push_back(bytes_of(tensor));
    return at::cat(all);
  }

  [[nodiscard]] std::int64_t bytes_of_constants() const {
    std::int64_t bytes = 0;
    for (const at::Tensor& tensor : constants_)
      bytes += tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
    return bytes;
  }

  void set_constants(const at::Tensor& message) const {
    check_input(
        message.numel() == bytes_of_constants(),
        "parameter server: worker 0 has {} bytes of buffers and frozen parameters, and this "
        "worker {}",
        message.numel(), bytes_of_constants());
    at::NoGradGuard no_grad;
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : constants_) {
      const std::int64_t bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
      if (bytes == 0) continue;
      tensor.detach().copy_(
          message.narrow(0, offset, bytes).clone().view(tensor.scalar_type()).view(tensor.sizes()));
      offset += bytes;
    }
  }

 private:
  void add_constant(const std::string& name, const at::Tensor& tensor) {
    constants_.push_back(tensor);
    constant_keys_.push_back(key_of(name, tensor));
  }

  std::vector<TrainedParameter> trained_;
  std::vector<at::Tensor> constants_;
  std::vector<Key> constant_keys_;
};

}  // namespace

class Worker::Impl {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module, const Meeting& meeting, std::optional<int> number,
       const WorkerOptions& options)
      : module_(std::move(module)),
        watch_(*module_, {}, "the worker was made", /*with_buffers=*/false),
        keys_(*module_, options.by_rows),
        servers_(meeting, number, keys_.keys()) {
    say_hello();
    pull();
  }

  ~Impl() {
    if (!has_left_ && std::uncaught_exceptions() == exceptions_) servers_.say_leave();
  }

  [[nodiscard]] int number() const { return servers_.worker(); }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  [[nodiscard]] Traffic traffic() const { return traffic_; }

  void zero_grad() {
    for (TrainedParameter& one : keys_.trained()) one.tensor.mutable_grad().reset();
  }

  void push() {
    check_alive();
    check(!has_pushed_,
          "parameter server: push() was called twice without pull(): these gradients are of values "
          "that the servers have changed since");
    watch_.check();
    keys_.check_unchanged();
    at::NoGradGuard no_grad;
    const std::vector<GradientRows> rows = gather_rows();
    with_servers("push", [&](RemoteServer& remote) { push_to(remote, rows); });
    for (TrainedParameter& one : keys_.trained())
      if (one.pulled.defined()) one.pulled.zero_();
    has_pushed_ = true;
    ++steps_;
  }

  void pull() {
    check_alive();
    at::NoGradGuard no_grad;
    with_servers("pull", [](RemoteServer& remote) { remote.connection->send({Message::pull}); });
    with_servers("pull", [&](RemoteServer& remote) {
      (void)servers_.answer(remote);
      remote.connection->receive(remote.buffer);
      traffic_.pulled += remote.buffer.numel();
      for (std::size_t i = 0; i < remote.whole->size(); ++i) {
        const Piece& piece = remote.pieces[remote.whole->number(i)];
        rows_of(keys_.trained(piece).tensor.detach(), piece)
            .copy_(remote.whole->view(remote.buffer, i));
      }
    });
    has_pushed_ = false;
  }

  void pull_rows(std::string_view name, const at::Tensor& rows) {
    check_alive();
    auto found = std::ranges::find_if(keys_.trained(), [&](const TrainedParameter& one) {
      return one.key.by_rows && one.key.name == name;
    });
    check(found != keys_.trained().end(),
          "parameter server: pull_rows: '{}' is not a parameter that WorkerOptions::by_rows names",
          name);
    check(rows.defined() && at::isIntegralType(rows.scalar_type(), /*includeBool=*/false),
          "parameter server: pull_rows of {}: the rows must be integers", name);
    check(!has_pushed_, "parameter server: pull_rows of {} after push(): call pull() first", name);
    at::Tensor wanted = std::get<0>(at::_unique(rows.detach().to(at::kCPU, at::kLong).flatten()));
    if (wanted.numel() == 0) return;
    const auto least = wanted[0].item<std::int64_t>(), most = wanted[-1].item<std::int64_t>();
    check(least >= 0 && most < found->key.rows(),
          "parameter server: pull_rows of {}: expected rows from 0 to {}, found {}", name,
          found->key.rows() - 1, least < 0 ? least : most);
    pull_rows(*found, wanted);
  }

  void pull_all_rows() {
    check_alive();
    check(!has_pushed_, "parameter server: pull_all_rows() after push(): call pull() first");
    for (TrainedParameter& one : keys_.trained())
      if (one.key.by_rows) pull_rows(one, at::arange(one.key.rows(), at::kLong));
  }

  void request(std::string_view text, const std::function<void()>& meanwhile) {
    check_alive();
    check(!has_pushed_, "parameter server: request() after push(): call pull() first");
    with_servers("request", [&](RemoteServer& remote) {
      remote.connection->send({Message::request, static_cast<std::int64_t>(text.size())});
      remote.connection->send_text(text);
    });
    if (meanwhile) meanwhile();
    with_servers("request", [&](RemoteServer& remote) { (void)servers_.answer(remote); });
  }

  void leave() {
    check_alive();
    has_left_ = true;
    servers_.say_leave();
  }

 private:
  void say_hello() {
    const std::string keys = encode_keys(keys_.keys());
    const std::string constants = encode_keys(keys_.constant_keys());
    with_servers("hello", [&](RemoteServer& remote) {
      remote.connection->send({Message::hello, static_cast<std::int64_t>(keys.size()),
                               static_cast<std::int64_t>(constants.size())});
      remote.connection->send_text(keys);
      remote.connection->send_text(constants);
    });
    std::int64_t step = 0;
    with_servers("hello", [&](RemoteServer& remote) {
      Header header = remote.connection->receive(servers_.join_limit());
      if (header.message == Message::refused)
        throw Mismatch(remote.connection->receive_text(header.first));
      if (header.message == Message::needs_values) {
        send_values(remote);
        header = servers_.answer(remote);
      }
      step = std::max(step, header.first);
    });
    with_servers("begin", [&](RemoteServer& remote) {
      remote.connection->send({Message::begin, step});
      (void)servers_.answer(remote);
    });
    steps_ = step;
    if (number() == 0) return;
    with_servers("constants", [&](RemoteServer& remote) {
      if (!servers_.is_first(remote)) return;
      remote.connection->send({Message::constants});
      at::Tensor constants = at::empty({servers_.answer(remote).first}, at::kByte);
      remote.connection->receive(constants);
      keys_.set_constants(constants);
    });
  }

  void send_values(RemoteServer& remote) {
    const Share all(keys_.keys(), remote.pieces, Share::Kind::all);
    at::Tensor values = all.make_buffer();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Piece& piece = remote.pieces[i];
      all.view(values, i).copy_(rows_of(keys_.trained(piece).tensor.detach(), piece));
    }
    const bool first = servers_.is_first(remote);
    at::Tensor constants = first ? keys_.constants() : at::empty({0}, at::kByte);
    remote.connection->send({Message::ready, values.numel(), constants.numel()});
    remote.connection->send(values);
    remote.connection->send(constants);
  }

  // Collects the rows with a gradient of parameters by rows, one element per trained parameter;
  // checks them before anything is sent.
  [[nodiscard]] std::vector<GradientRows> gather_rows() {
    std::vector<GradientRows> found;
    for (TrainedParameter& one : keys_.trained()) {
      found.push_back({at::empty({0}, at::kLong), {}});
      GradientRows& rows = found.back();
      const at::Tensor& gradient = one.tensor.grad();
      check(one.key.by_rows || !gradient.defined() || gradient.layout() == at::kStrided,
            "parameter server: the gradient of {} is sparse: name it in WorkerOptions::by_rows",
            one.key.name);
      if (one.key.by_rows && gradient.defined()) {
        rows = rows_with_gradient(gradient);
        at::Tensor stale = at::logical_not(one.pulled.index_select(0, rows.rows));
        check(!stale.any().item<bool>(),
              "parameter server: row {} of {} has a gradient, but was not pulled since the last "
              "push(): call pull_rows() before forward()",
              stale.any().item<bool>() ? rows.rows.masked_select(stale)[0].item<std::int64_t>() : 0,
              one.key.name);
      }
    }
    return found;
  }

  void push_to(RemoteServer& remote, const std::vector<GradientRows>& rows) {
    at::Tensor flags = at::zeros({static_cast<std::int64_t>(remote.pieces.size())}, at::kByte);
    for (std::size_t i = 0; i < remote.pieces.size(); ++i)
      flags.data_ptr<std::uint8_t>()[i] =
          keys_.trained(remote.pieces[i]).tensor.grad().defined() ? 1 : 0;
    for (std::size_t i = 0; i < remote.whole->size(); ++i) {
      const Piece& piece = remote.pieces[remote.whole->number(i)];
      const at::Tensor& gradient = keys_.trained(piece).tensor.grad();
      if (gradient.defined())
        remote.whole->view(remote.buffer, i).copy_(rows_of(gradient.detach(), piece));
    }
    at::Tensor counts = at::zeros({static_cast<std::int64_t>(remote.by_rows->size())}, at::kLong);
    std::vector<at::Tensor> numbers{at::empty({0}, at::kLong)}, values{at::empty({0}, at::kByte)};
    for (std::size_t i = 0; i < remote.by_rows->size(); ++i) {
      const Piece& piece = remote.pieces[remote.by_rows->number(i)];
      const auto key = static_cast<std::size_t>(piece.key);
      const at::Tensor& all = rows[key].rows;
      at::Tensor here = (all >= piece.rows.begin).logical_and_(all < piece.rows.end);
      at::Tensor own = all.masked_select(here);
      counts.data_ptr<std::int64_t>()[i] = own.numel();
      if (own.numel() == 0) continue;
      numbers.push_back(own - piece.rows.begin);
      values.push_back(rows[key]
                           .values.index_select(0, here.nonzero().flatten())
                           .contiguous()
                           .view({-1})
                           .view(at::kByte));
    }
    at::Tensor all_numbers = at::cat(numbers), all_values = at::cat(values);
    remote.connection->send({Message::push, all_numbers.numel(), all_values.numel()});
    remote.connection->send(remote.buffer);
    remote.connection->send(flags);
    remote.connection->send(counts);
    remote.connection->send(all_numbers);
    remote.connection->send(all_values);
    traffic_.pushed += remote.buffer.numel() + 8 * all_numbers.numel() + all_values.numel();
  }

  void pull_rows(TrainedParameter& parameter, const at::Tensor& rows) {
    at::NoGradGuard no_grad;
    with_servers("pull_rows", [&](RemoteServer& remote) {
      for (std::size_t i = 0; i < remote.by_rows->size(); ++i) {
        const Piece& piece = remote.pieces[remote.by_rows->number(i)];
        if (&keys_.trained(piece) != &parameter) continue;
        at::Tensor own =
            rows.masked_select((rows >= piece.rows.begin).logical_and_(rows < piece.rows.end));
        if (own.numel() == 0) continue;
        remote.connection->send({Message::pull_rows, static_cast<std::int64_t>(i), own.numel()});
        remote.connection->send(own - piece.rows.begin);
        (void)servers_.answer(remote);
        at::Tensor bytes = at::empty({own.numel() * parameter.key.row_bytes()}, at::kByte);
        remote.connection->receive(bytes);
        std::vector<std::int64_t> sizes = parameter.key.sizes;
        sizes.front() = own.numel();
        const at::Tensor& tensor = parameter.tensor;
        tensor.detach().index_copy_(
            0, own.to(tensor.device()),
            bytes.view(tensor.scalar_type()).view(sizes).to(tensor.device()));
        traffic_.pulled += bytes.numel() + 8 * own.numel();
      }
    });
    parameter.pulled.index_fill_(0, rows, true);
  }

  void check_alive() const {
    check(!has_left_, "parameter server: worker {} has left", servers_.worker());
    servers_.check_alive();
  }

  void with_servers(const char* what, const std::function<void(RemoteServer&)>& action) {
    servers_.each(what, steps_, action);
  }

  const std::shared_ptr<torch::nn::Module> module_;
  const modules::ModuleWatch watch_;
  const int exceptions_ = std::uncaught_exceptions();
  WorkerKeys keys_;
  RemoteServers servers_;
  std::int64_t steps_ = 0;
  bool has_pushed_ = false;  // since the last pull
  bool has_left_ = false;
  Traffic traffic_;
};

Worker::Worker(const ModuleRef& module, const Meeting& meeting, std::optional<int> number,
               const WorkerOptions& options)
    : impl_(std::make_unique<Impl>(module.shared("parameter server: worker"), meeting, number,
                                   options)) {}

Worker::~Worker() = default;

int Worker::number() const { return impl_->number(); }
std::int64_t Worker::steps() const { return impl_->steps(); }
Traffic Worker::traffic() const { return impl_->traffic(); }
void Worker::zero_grad() { impl_->zero_grad(); }
void Worker::push() { impl_->push(); }
void Worker::pull() { impl_->pull(); }
void Worker::pull_rows(std::string_view name, const at::Tensor& rows) {
  impl_->pull_rows(name, rows);
}
void Worker::pull_all_rows() { impl_->pull_all_rows(); }
void Worker::request(std::string_view text, const std::function<void()>& meanwhile) {
  impl_->request(text, meanwhile);
}
void Worker::leave() { impl_->leave(); }

}  // namespace lockstep::ps
