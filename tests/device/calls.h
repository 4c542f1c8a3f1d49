// Every collective as a function of one input, so that a test can compare the results for tensors
// in different memories.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

struct DeviceCall {
  std::string name;
  // Takes an input whose elements divide evenly among the ranks. Returns an undefined tensor on
  // ranks that get no result.
  std::function<at::Tensor(Group&, const at::Tensor&)> run;
};

inline at::Tensor empty_as(const at::Tensor& like, std::int64_t elements) {
  return at::empty({elements}, like.options());
}

inline std::vector<DeviceCall> reductions() {
  auto all_reduce = [](Op op) {
    return [op](Group& group, const at::Tensor& input) {
      auto tensor = input.clone();
      group.all_reduce(tensor, op).wait();
      return tensor;
    };
  };
  return {{"all_reduce sum", all_reduce(Op::sum)},
          {"all_reduce max", all_reduce(Op::max)},
          {"reduce",
           [](Group& group, const at::Tensor& input) {
             auto tensor = input.clone();
             group.reduce(tensor, group.size() - 1).wait();
             return tensor;
           }},
          {"reduce_scatter", [](Group& group, const at::Tensor& input) {
             auto output = empty_as(input, input.numel() / group.size());
             group.reduce_scatter(output, input).wait();
             return output;
           }}};
}

inline std::vector<DeviceCall> moves() {
  return {{"broadcast",
           [](Group& group, const at::Tensor& input) {
             auto tensor = input.clone();
             group.broadcast(tensor, 1).wait();
             return tensor;
           }},
          {"all_gather",
           [](Group& group, const at::Tensor& input) {
             auto output = empty_as(input, input.numel() * group.size());
             group.all_gather(output, input).wait();
             return output;
           }},
          {"all_gather of uneven parts",
           [](Group& group, const at::Tensor& input) {
             std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 2);
             counts.back() = 5;
             auto output = empty_as(input, 2 * group.size() + 3);
             group.all_gather(output, input.narrow(0, 0, counts.at(group.rank())), counts).wait();
             return output;
           }},
          {"all_to_all",
           [](Group& group, const at::Tensor& input) {
             auto output = at::empty_like(input);
             group.all_to_all(output, input).wait();
             return output;
           }},
          {"gather",
           [](Group& group, const at::Tensor& input) {
             auto output =
                 group.is_root() ? empty_as(input, input.numel() * group.size()) : at::Tensor();
             group.gather(output, input).wait();
             return output;
           }},
          {"scatter",
           [](Group& group, const at::Tensor& input) {
             auto output = empty_as(input, input.numel() / group.size());
             group.scatter(output, group.is_root() ? input : at::Tensor()).wait();
             return output;
           }},
          {"messages to both neighbours", [](Group& group, const at::Tensor& input) {
             const int next = (group.rank() + 1) % group.size();
             const int before = (group.rank() + group.size() - 1) % group.size();
             auto output = at::empty_like(input);
             auto send = group.send(input, next);
             group.recv(output, before).wait();
             send.wait();
             return output;
           }}};
}

}  // namespace lockstep::test
