// Chooses the library that multiplies matrices for LibTorch's operations mm, addmm and bmm on the
// CPU.
//
// LibTorch passes float32 products to MKL. On processors with AVX-512 from other vendors than
// Intel, MKL uses instructions of half the width; oneDNN, which is also part of LibTorch, does not
// check the vendor. choose() registers kernels for these three operations. The kernels pass a
// product to oneDNN if oneDNN is faster, and every other product to LibTorch's own kernel, with
// bitwise the same results as before. Modules, autograd formulas and local products of global
// tensors all go through the dispatcher, so they use these kernels without any change.
//
// The choice holds for the whole process, like the number of threads, until the next call of
// choose(). The kernels stay registered until the process exits, because a backward pass can run at
// any time; when switched off, they only test a flag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::matmul {

// Switches oneDNN on or off. Thread-safe. If `onednn` is std::nullopt, uses LOCKSTEP_ONEDNN_MATMUL
// (on or off); if that is not set either, uses oneDNN if MKL is slower (mkl_takes_narrow_way()).
// Throws BadInput if oneDNN was requested but cannot be used.
void choose(std::optional<bool> onednn);

// Returns true if LibTorch uses MKL, on a processor where MKL uses half of the vector width.
[[nodiscard]] bool mkl_takes_narrow_way();

// Returns true if products that fit go to oneDNN. The first call tests oneDNN, which takes a few
// milliseconds.
[[nodiscard]] bool is_onednn();

// Returns "oneDNN" or "LibTorch's own", for headings of measurements.
[[nodiscard]] std::string_view library();

// Returns the number of products that oneDNN has computed in this process.
[[nodiscard]] std::uint64_t onednn_products();

namespace onednn {

// Returns an empty string if oneDNN can be used, otherwise a short reason. The first call takes a
// few milliseconds: it computes small products with known results.
[[nodiscard]] const std::string& missing();

// Returns the size of the first piece of `count` rows: the largest number up to `count` with five
// significant bits.
[[nodiscard]] std::int64_t next_piece(std::int64_t count);

}  // namespace onednn

}  // namespace lockstep::matmul
