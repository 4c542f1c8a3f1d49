// oneDNN's products, as LibTorch lets others call them. Its own interface is hidden inside of
// libtorch_cpu.so.
//
// oneDNN makes a kernel for each shape, in about a millisecond and half a megabyte, and keeps 1024
// of them (ONEDNN_PRIMITIVE_CACHE_CAPACITY). A program whose batches have ever other lengths would
// make ever other kernels. So the dim that counts tokens or rows of a batch is cut in pieces of
// five significant bits: 1000 rows are 992 and 8. Every length up to 4096 then takes the kernels of
// 144 sizes, most round lengths are one piece, and the bits depend on nothing but the shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace lockstep::matmul::onednn {

// Empty: products can be computed. Else why not, in a few words. The first call takes some
// milliseconds: it computes small products whose results are known.
[[nodiscard]] const std::string& missing();

// What is cut first from `count` rows: the largest number up to it of five significant bits.
[[nodiscard]] std::int64_t next_piece(std::int64_t count);

// a times b, plus `bias` in every row where there is one. For what fits (fit.h), where nothing is
// missing.
[[nodiscard]] at::Tensor product(const at::Tensor& a, const at::Tensor& b,
                                 const std::optional<at::Tensor>& bias = {});

}  // namespace lockstep::matmul::onednn
