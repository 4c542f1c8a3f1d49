// Connection: a worker and a server, and what they say to each other.
//
// Two ranks of a group of their own, the server being rank 0: so the end of one is the other's
// PeerLost and nobody else's. The worker asks and the server answers, one after the other:
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
// which both ends know the sizes of what follows; what is empty is not sent. One thread a time.
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
    std::string address;  // gloo: of this machine, as the other one reaches it
    bool is_server = false;
    std::string name;  // for messages
    Duration timeout = {};
    Duration join_timeout = {};
  };
  // Blocks until the other one has come to the same part of a store.
  Connection(std::shared_ptr<Store> store, const Ends& ends);

  void send(const Header& header);
  [[nodiscard]] Header receive(Duration timeout);
  // Contiguous tensors of the host. Blocks until the other one has taken it.
  void send(const at::Tensor& tensor);
  void receive(const at::Tensor& tensor);
  void send_text(std::string_view text);
  [[nodiscard]] std::string receive_text(std::int64_t bytes);

  // Any thread: ends it, here and there, with this reason.
  void abort(std::string_view reason) { group_.abort(reason); }
  void set_timeout(Duration timeout) { group_.set_timeout(timeout); }

 private:
  int peer_;
  Group group_;
  at::Tensor out_, in_;  // headers
};

}  // namespace lockstep::ps
