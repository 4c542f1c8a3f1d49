// Operations that round to another dtype round the sum of a Partial tensor, not its addends.
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using FunctionOfSum = std::function<at::Tensor(const at::Tensor&)>;

// Expects that two ranks with one addend each give bitwise the result of a single process with the
// sum.
void expect_of_sum(const std::vector<at::Tensor>& addends, const FunctionOfSum& function,
                   const std::string& what) {
  const at::Tensor expected = function(addends[0] + addends[1]);
  run_as_threads(2, [&](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    const auto rank = static_cast<std::size_t>(world.rank());
    at::Tensor found = full_tensor(function(from_local(addends[rank].clone(), mesh, {Partial()})));
    EXPECT_EQ(found.scalar_type(), expected.scalar_type()) << what;
    EXPECT_TRUE(found.equal(expected)) << what << ": found " << found << ", expected " << expected;
  });
}

// Returns addends that cancel.
std::vector<at::Tensor> large_addends(at::ScalarType dtype) {
  const at::Tensor small = at::tensor({0.5, 1.25, -3.0, 7.5}, at::kDouble);
  return {(small + 4096).to(dtype), (small * 2 - 4096).to(dtype)};
}

TEST(DtypesOfPartials, ACastRoundsTheSum) {
  for (at::ScalarType to : {at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kBool, at::kFloat})
    expect_of_sum(
        large_addends(at::kDouble), [=](const at::Tensor& x) { return x.to(to); },
        std::string("to ") + c10::toString(to));
  expect_of_sum(
      large_addends(at::kFloat), [](const at::Tensor& x) { return x.to(at::kBFloat16); },
      "float to bfloat16");
  // Dtypes of the same size, with fewer digits or a smaller range.
  const auto sixteen = [](double a, double b, at::ScalarType dtype) {
    return std::vector<at::Tensor>{at::tensor({a}).to(dtype), at::tensor({b}).to(dtype)};
  };
  expect_of_sum(
      sixteen(1.0009765625, -1, at::kHalf), [](const at::Tensor& x) { return x.to(at::kBFloat16); },
      "half to bfloat16");
  expect_of_sum(
      sixteen(70000, -69632, at::kBFloat16), [](const at::Tensor& x) { return x.to(at::kHalf); },
      "bfloat16 to half");
}

TEST(DtypesOfPartials, IntegersWrapBeforeTheyAreWidened) {
  const at::Tensor hundred = at::full({2}, 100, at::kChar);
  expect_of_sum(
      {hundred, hundred}, [](const at::Tensor& x) { return x.to(at::kInt); }, "int8 to int");
  expect_of_sum(
      {hundred, hundred}, [](const at::Tensor& x) { return x.sum(); }, "sum of int8");
  const std::int64_t large = std::int64_t{1} << 40;
  const std::vector<at::Tensor> addends = {at::full({2}, large, at::kLong),
                                           at::full({2}, 3 - large, at::kLong)};
  for (at::ScalarType to : {at::kFloat, at::kHalf, at::kInt})
    expect_of_sum(
        addends, [=](const at::Tensor& x) { return x.to(to); },
        std::string("int64 to ") + c10::toString(to));
  expect_of_sum(
      addends, [](const at::Tensor& x) { return x * 0.5; }, "times 0.5");
  expect_of_sum(
      addends, [](const at::Tensor& x) { return x / 2; }, "divided by 2");
  expect_of_sum(
      addends,
      [](const at::Tensor& x) {
        return at::_foreach_mul({x, x}, 0.5)[1];
      },
      "each times 0.5");
  expect_of_sum(
      addends,
      [](const at::Tensor& x) {
        return at::cat({x, at::zeros_like(x, at::kFloat) + x * 0});
      },
      "joined with float");
}

TEST(DtypesOfPartials, ReductionsWithADtypeRoundTheSum) {
  const std::vector<std::pair<std::string, FunctionOfSum>> all = {
      {"sum", [](const at::Tensor& x) { return x.sum(at::kBFloat16); }},
      {"sum of dim", [](const at::Tensor& x) { return x.sum(0, false, at::kBFloat16); }},
      {"sum of integers", [](const at::Tensor& x) { return x.sum(at::kLong); }},
      {"mean", [](const at::Tensor& x) { return x.mean(at::kBFloat16); }},
      {"prod", [](const at::Tensor& x) { return x.prod(at::kBFloat16); }},
      {"cumsum", [](const at::Tensor& x) { return x.cumsum(0, at::kBFloat16); }},
  };
  for (const auto& [name, function] : all) expect_of_sum(large_addends(at::kFloat), function, name);
}

// 257 does not fit the precision of bfloat16.
TEST(DtypesOfPartials, ReductionsOfCutDimsRoundTheSum) {
  at::Tensor x = at::ones({514}).view({2, 257});
  x.select(0, 1).narrow(0, 0, 256).fill_(-1);
  const std::vector<FunctionOfSum> all = {
      [](const at::Tensor& x) { return x.sum(at::kBFloat16); },
      [](const at::Tensor& x) { return x.sum(0, true, at::kBFloat16).sum(1, false, at::kFloat); },
      [](const at::Tensor& x) { return x.mean(at::kBFloat16); },
      [](const at::Tensor& x) {
        return x.nansum(at::IntArrayRef{0, 1}, false, at::kBFloat16);
      },
  };
  run_as_threads(2, [&](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(full_tensor(all[i](distribute(x, mesh, {Shard(0)}))).equal(all[i](x))) << i;
  });
}

TEST(DtypesOfPartials, WritesToANarrowerTensorRoundTheSum) {
  using Write = void (*)(at::Tensor to, const at::Tensor& from);
  const std::vector<std::pair<std::string, Write>> all = {
      {"copy_", [](at::Tensor to, const at::Tensor& from) { to.copy_(from); }},
      {"add_", [](at::Tensor to, const at::Tensor& from) { to.add_(from); }},
      {"sub_", [](at::Tensor to, const at::Tensor& from) { to.sub_(from); }},
      {"addcmul_",
       [](at::Tensor to, const at::Tensor& from) { to.addcmul_(from, at::ones_like(from)); }},
      {"_foreach_copy_",
       [](at::Tensor to, const at::Tensor& from) {
         std::vector<at::Tensor> tos = {to};
         at::_foreach_copy_(tos, std::vector<at::Tensor>{from});
       }},
      {"_foreach_add_",
       [](at::Tensor to, const at::Tensor& from) {
         std::vector<at::Tensor> tos = {to};
         at::_foreach_add_(tos, std::vector<at::Tensor>{from});
       }},
  };
  const std::vector<at::Tensor> addends = large_addends(at::kFloat);
  for (const auto& [name, write] : all) {
    at::Tensor expected = at::zeros({4}, at::kBFloat16);
    write(expected, addends[0] + addends[1]);
    run_as_threads(2, [&, write = write, name = name](Group world) {
      Mesh mesh = test::mesh_of_ranks(world, {2});
      at::Tensor to = from_local(at::zeros({4}, at::kBFloat16), mesh, {Partial()});
      write(to,
            from_local(addends[static_cast<std::size_t>(world.rank())].clone(), mesh, {Partial()}));
      EXPECT_TRUE(full_tensor(to).equal(expected)) << name << full_tensor(to) << expected;
    });
  }
}

TEST(DtypesOfPartials, ACastToAWiderDtypeStaysPartial) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    for (auto [from, to] : {std::pair(at::kBFloat16, at::kFloat),
                            {at::kHalf, at::kFloat},
                            {at::kFloat, at::kDouble},
                            {at::kFloat, at::kComplexFloat}}) {
      at::Tensor x = from_local(at::ones({2}, from), mesh, {Partial()});
      EXPECT_TRUE(placements(x.to(to))[0].is_partial()) << c10::toString(to);
    }
    EXPECT_EQ(traffic(mesh).calls(), 0);
  });
}

}  // namespace
}  // namespace lockstep
