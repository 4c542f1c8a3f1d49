// Which library multiplies matrices for LibTorch's operations mm, addmm and bmm on the CPU.
//
// LibTorch gives float32 products to MKL. On processors with AVX-512 that are not Intel's, MKL
// computes them with instructions of half the width; oneDNN, which is inside of LibTorch too, does
// not look at the vendor. What choose() registers are kernels of these three operations that give a
// product to oneDNN where it is faster (fit.h), and every other one to LibTorch's own kernel, with
// the same bits as before. Modules, autograd's formulas and global tensors' local products come
// through the dispatcher, and so come here unchanged.
//
// The choice is the process's, as the number of threads is: it holds for every thread, and until
// choose() is called again. The kernels stay registered for the life of the process, since a graph
// may be walked backward at any time; switched off they only ask whether they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::matmul {

// Any thread. Absent: LOCKSTEP_ONEDNN_MATMUL (on or off), else oneDNN where MKL is the slower one
// (mkl_takes_narrow_way()). BadInput when oneDNN was asked for and something that it needs is
// missing.
void choose(std::optional<bool> onednn);

// Whether LibTorch multiplies by MKL, on a processor on which that uses half of the vector width.
[[nodiscard]] bool mkl_takes_narrow_way();

// Whether products that fit go to oneDNN now. The first call tries oneDNN, which takes some
// milliseconds.
[[nodiscard]] bool is_onednn();

// "oneDNN" or "LibTorch's own", for headings of measurements.
[[nodiscard]] std::string_view library();

// How many products oneDNN has computed for this process.
[[nodiscard]] std::uint64_t onednn_products();

}  // namespace lockstep::matmul
