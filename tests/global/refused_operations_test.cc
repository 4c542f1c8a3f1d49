// Operations without a rule for global tensors throw before computing, with one line that names the
// operation and a workaround.
#include "tests_of_global.h"

#include "support/messages.h"

#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/padding.h>

#include <functional>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using test::numbers;

struct Refused {
  std::string operation;
  std::function<void(const at::Tensor& x)> call;  // takes a table of 8 rows and 6 columns
  std::vector<std::string> words;                 // the workaround
};

std::vector<Refused> refused_operations() {
  namespace functional = torch::nn::functional;
  const std::vector<std::string> replicate = {"no rule", "replicate_unknown = true"};
  const auto bag_of = [](const at::Tensor& x, const functional::EmbeddingBagFuncOptions& options) {
    const at::Tensor ids = distribute(at::arange(4).view({2, 2}), mesh_of(x), {Replicate()});
    (void)functional::embedding_bag(ids, x, options);
  };
  return {
      {"aten::_embedding_bag",
       [=](const at::Tensor& x) { bag_of(x, functional::EmbeddingBagFuncOptions()); }, replicate},
      {"aten::index",
       [](const at::Tensor& x) { (void)x.index({x > 3}); },
       {"found a mask", "where()", "masked_fill()", "masked_select()"}},
      {"aten::index", [](const at::Tensor& x) { (void)x.index({x.sum(1) > 3}); }, {"found a mask"}},
      {"aten::reflection_pad2d",
       [](const at::Tensor& x) {
         (void)functional::pad(x.view({1, 1, 8, 6}),
                               functional::PadFuncOptions({1, 1, 1, 1}).mode(torch::kReflect));
       },
       replicate},
      {"aten::replication_pad1d",
       [](const at::Tensor& x) {
         (void)functional::pad(x, functional::PadFuncOptions({1, 1}).mode(torch::kReplicate));
       },
       replicate}};
}

TEST(RefusedOperations, AreOneLineWithTheOperationAndAWayRound) {
  for (const bool requires_grad : {false, true})
    for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0))})
      run_as_threads(2, [&](Group world) {
        const Mesh mesh = test::mesh_of_ranks(world, {2});
        at::Tensor x = distribute(numbers({8, 6}), mesh, {placement});
        x.requires_grad_(requires_grad);
        for (const auto& [operation, call, words] : refused_operations()) {
          const std::string text = test::message_of<InvalidArgument>([&] { call(x); });
          EXPECT_TRUE(text.starts_with(operation)) << operation << ": " << text;
          test::expect_words(text, words);
          EXPECT_EQ(text.find('\n'), std::string::npos) << text;
        }
        world.barrier().wait();
      });
}

}  // namespace
}  // namespace lockstep
