// Messages of hostile peers of a store's server, and the information that outsiders (peers without
// the secret) must not get.
#pragma once

#include "store/raw_peer.h"
#include "support/fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::store {

inline std::vector<Message> some_requests() {
  return {{1, Code::set, 0, {"key", "value"}},
          {2, Code::get, 1000, {"key"}},
          {3, Code::wait, 1000, {"key", "other", "third"}},
          {4, Code::add, -7, {"count"}},
          {5, Code::compare_set, 0, {"key", "value", "new"}},
          {6, Code::keys, 0, {""}},
          {7, Code::erase, 0, {"key"}},
          {8, Code::try_get, 0, {"key"}},
          {9, Code::on_disconnect, 0, {"word", "I have gone"}},
          {10, Code::get, 60'000'000'000, {"nobody writes this"}},
          {11, Code::set, 0, {"large", std::string(20'000, 'v')}},
          {12, Code::get, 0, {"large"}}};
}

inline void send_in_pieces(RawPeer& peer, std::string_view bytes, test::Random& random) {
  while (!bytes.empty()) {
    bool cut = test::one_in(random, 4);
    auto size = std::min(bytes.size(), cut ? 1 + test::below(random, 40) : bytes.size());
    if (!peer.send(bytes.substr(0, size))) return;
    bytes.remove_prefix(size);
  }
}

// Peers that have recorded one connection of a client that knows the secret, and replay it, change
// it, or make up bytes.
class Outsiders {
 public:
  Outsiders(std::uint16_t port, const std::string& secret) : port_(port) {
    RawPeer peer(port);
    TestClient client(secret);
    heard_proof_ = client.prove(peer.receive(greeting_bytes));
    peer.send(heard_proof_);
    heard_rest_ = client.begin(peer.receive(answer_bytes));
    for (const Message& request : some_requests()) heard_rest_ += client.seal(request);
    peer.send(heard_rest_);
    (void)peer.finish();
  }

  // Opens one connection. Some connections stay open without sending more; the oldest of these is
  // closed.
  void talk(test::Random& random) {
    static const std::string refusal(answer_bytes, '\0');
    auto peer = std::make_unique<RawPeer>(port_);
    std::string said = something(peer->receive(greeting_bytes), random);
    send_in_pieces(*peer, said, random);
    bool is_short = said.size() < proof_part_bytes;
    if (is_short && test::one_in(random, 4)) {
      staying_.push_back(std::move(peer));
      if (staying_.size() > 20) staying_.pop_front();
      return;
    }
    std::string answer = peer->finish();
    EXPECT_TRUE(refusal.starts_with(answer)) << answer.size() << " bytes";
    if (is_short) EXPECT_EQ(answer, "");
    refused_ += answer == refusal ? 1 : 0;
  }

  // Returns the number of connections that were refused.
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  std::string something(const std::string& greeting, test::Random& random) const {
    TestClient guesser("a guess");
    switch (test::below(random, 7)) {
      case 0:
        return test::random_bytes(random, test::below(random, 300));
      case 1:
        return guesser.prove(greeting) + test::random_bytes(random, test::below(random, 300));
      case 2:
        return test::mutated(guesser.prove(greeting), random);
      case 3:
        return heard_proof_ + heard_rest_;
      case 4:
        return test::mutated(heard_proof_ + heard_rest_, random);
      case 5:
        return greeting + greeting;
      default:
        return test::mutated("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" +
                                 std::string(test::below(random, 60), ' '),
                             random);
    }
  }

  std::uint16_t port_;
  std::string heard_proof_, heard_rest_;
  std::deque<std::unique_ptr<RawPeer>> staying_;
  std::uint64_t refused_ = 0;
};

}  // namespace lockstep::store
