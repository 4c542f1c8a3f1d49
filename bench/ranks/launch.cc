// Programs that bench/launch.py launches, to measure a start, a restart and requests to the store.
#include "serve.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"

#include <lockstep/comm/init.h>
#include <lockstep/elastic/elastic.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::bench {

namespace {

constexpr const char* secret = "of this benchmark";
constexpr std::size_t value_bytes = 64;

// Writes the current time by CLOCK_MONOTONIC, which is also Python's time.monotonic(), atomically
// to a file.
void mark(const std::filesystem::path& folder, const std::string& name) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto partial = folder / (name + ".partial");
  std::ofstream(partial) << std::chrono::nanoseconds(now).count() << " " << ::getpid();
  std::filesystem::rename(partial, folder / name);
}

int number_of(const std::string& text) {
  const auto number = parse_integer(text);
  check_input(number && *number >= 0 && *number <= 1'000'000, "expected a number, found '{}'",
              text);
  return static_cast<int>(*number);
}

// FOLDER: runs until the first barrier.
int start(const Words& words) {
  Group world = init();
  world.barrier().wait();
  mark(words.at(0), formatted("started.{}", world.rank()));
  return 0;
}

// Runs one round of step_on().
void step_in(Group& world, std::int64_t round, const std::filesystem::path& folder) {
  bool first = true;
  for (double stop = 0; stop == 0;) {
    at::Tensor gradient = at::ones({1 << 16});
    if (std::filesystem::exists(folder / "stop")) gradient.mul_(2);
    world.all_reduce(gradient).wait();
    stop = gradient[0].item<double>() - world.size();
    if (std::exchange(first, false)) mark(folder, formatted("step.{}.{}", round, world.rank()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// FOLDER: makes steps until the file `stop` exists, in as many rounds as necessary.
int step_on(const Words& words) {
  ElasticState state({.hot_spares = true});
  const bool is_done =
      elastic(state, [&](ElasticState& in) { step_in(in.group(), in.round(), words.at(0)); });
  return is_done ? 0 : 1;
}

// A client of a store, reduced to the requests that this benchmark makes.
struct Client {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::string(const std::string& key)> get;
};

Client client_of(const std::string& kind, std::uint16_t port) {
  if (kind == "lockstep") {
    auto store = std::make_shared<TcpStore>(TcpStoreOptions{.port = port, .secret = secret});
    return {[store](const auto& key, const auto& value) { store->set(key, value); },
            [store](const auto& key) {
              return store->get(key, Deadline::after(std::chrono::seconds(20)));
            }};
  }
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  return {[store](const auto& key, const auto& value) {
            store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
          },
          [store](const auto& key) {
            const auto bytes = store->get(key);
            return std::string(bytes.begin(), bytes.end());
          }};
}

// KIND: prints its port, and serves until its standard input ends.
int serve_store(const Words& words) {
  const auto until_told = [](std::uint16_t port) {
    std::cout << port << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
    }
    return 0;
  };
  if (words.at(0) == "lockstep") {
    const StoreServer server({.secret = secret});
    return until_told(server.port());
  }
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  return until_told(server->getPort());
}

// KIND PORT THREADS MILLISECONDS: prints the number of requests, half of which are set() and half
// get().
int ask_store(const Words& words) {
  const auto port = static_cast<std::uint16_t>(number_of(words.at(1)));
  const Client client = client_of(words.at(0), port);
  std::atomic<bool> over = false;
  std::atomic<std::int64_t> served = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < number_of(words.at(2)); ++thread)
    threads.emplace_back([&, key = formatted("{}/{}", ::getpid(), thread)] {
      const std::string value(value_bytes, 'v');
      std::int64_t requests = 0;
      for (; !over; requests += 2) {
        client.set(key, value);
        check(client.get(key).size() == value.size(), "a value came back changed");
      }
      served += requests;
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(number_of(words.at(3))));
  over = true;
  for (std::thread& thread : threads) thread.join();
  std::cout << served << std::endl;
  return 0;
}

}  // namespace

int be_launched(const Words& words) {
  check_input(words.size() >= 2, "launch: expected what to do, and its words");
  const Words rest(words.begin() + 1, words.end());
  if (words[0] == "start") return start(rest);
  if (words[0] == "steps") return step_on(rest);
  if (words[0] == "serve") return serve_store(rest);
  if (words[0] == "ask") return ask_store(rest);
  throw BadInput("launch: expected start, steps, serve or ask, found '" + words[0] + "'");
}

}  // namespace lockstep::bench
