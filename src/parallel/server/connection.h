// Connection: a worker and a server, and their protocol.
//
// Two ranks of a separate group, with the server as rank 0: if one ends, only the other one gets
// PeerLost. The worker sends requests and the server answers, in turn:
//
//   hello     {bytes, bytes}, keys,      refused {bytes}, text; or needs_values; or ready {step}
//             keys of constants
//             values, constants          (after needs_values) ready {step}
//   begin     {step}                     ready {}
//   constants                            ready {bytes}, constants
//   push      {rows, bytes}, gradients, flags, counts of rows, rows, values       no answer
//   pull                                 ready {}, values
//   pull_rows {piece, rows}, rows        ready {}, values
//   request   {bytes}, text              ready {}
//   leave                                no answer
//
// Constants are buffers and frozen parameters. A message begins with a header of fixed size, from
// which both ends know the sizes of the following parts; empty parts are not sent. One thread at a
// time.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/store/store.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::ps {

enum class Message : std::int64_t {
  hello,
  begin,
  constants,
  push,
  pull,
  pull_rows,
  request,
  leave,
  ready,
  needs_values,
  refused
};

struct Header {
  Message message = Message::ready;
  std::int64_t first = 0;
  std::int64_t second = 0;
};

// How long an idle server waits for a worker's next request.
inline constexpr Duration no_deadline = Duration::max();

class Connection {
 public:
  struct Ends {
    std::string backend;  // "shm" or "gloo"
    std::string address;  // gloo: this host's address for the other end
    bool is_server = false;
    std::string name;  // for messages
    Duration timeout = {};
    Duration join_timeout = {};
  };
  // Blocks until the other end has come to the same prefix of a store.
  Connection(std::shared_ptr<Store> store, const Ends& ends);

  void send(const Header& header);
  [[nodiscard]] Header receive(Duration timeout);
  // Sends contiguous host tensors. Blocks until the other end has received them.
  void send(const at::Tensor& tensor);
  void receive(const at::Tensor& tensor);
  void send_text(std::string_view text);
  [[nodiscard]] std::string receive_text(std::int64_t bytes);

  // Thread-safe. Ends the connection on both ends with this reason.
  void abort(std::string_view reason) { group_.abort(reason); }
  void set_timeout(Duration timeout) { group_.set_timeout(timeout); }

 private:
  int peer_;
  Group group_;
  at::Tensor out_, in_;  // headers
};

}  // namespace lockstep::ps
