#include "comm/engines/shm/lent_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

namespace lockstep::shm {
namespace {

using Hold = std::shared_ptr<const void>;

void let_go(void* hold) { const std::unique_ptr<Hold> last(static_cast<Hold*>(hold)); }

// Copies to memory of its own before the first write, even when it holds the last reference: the
// memory belongs to a peer.
class BorrowedStorage final : public c10::StorageImpl {
 public:
  BorrowedStorage(std::size_t bytes, c10::DataPtr data)
      : StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<std::int64_t>(bytes)),
                    std::move(data), c10::GetCPUAllocator(), /*resizable=*/true) {
    set_materializer([](c10::StorageImpl* storage) {
      auto& borrowed = *static_cast<BorrowedStorage*>(storage);
      auto own = borrowed.allocator()->clone(borrowed.data_ptr().get(), borrowed.nbytes());
      (void)borrowed.set_data_ptr_no_materialize(std::move(own));
    });
  }
};

c10::intrusive_ptr<c10::StorageImpl> storage_over(const Borrowed& borrowed, std::size_t bytes) {
  auto hold = std::make_unique<Hold>(borrowed.hold);
  auto* data = const_cast<std::byte*>(borrowed.data);
  c10::DataPtr memory(data, hold.release(), &let_go, c10::Device(c10::kCPU));
  return c10::make_intrusive<BorrowedStorage>(bytes, std::move(memory));
}

struct LeftOver {
  std::mutex mutex;
  std::vector<Loan> loans;

  static LeftOver& of_process() {
    static LeftOver& left = *std::make_unique<LeftOver>().release();
    return left;
  }
};

}  // namespace

std::shared_ptr<const void> keep_as_it_is(const at::Tensor& tensor) {
  auto clone = c10::impl::cow::lazy_clone_storage(*tensor.storage().unsafeGetStorageImpl());
  if (!clone) return nullptr;
  return std::make_shared<c10::intrusive_ptr<c10::StorageImpl>>(std::move(clone));
}

at::Tensor tensor_over(const Borrowed& borrowed, at::IntArrayRef sizes,
                       const at::TensorOptions& options) {
  const auto cpu = options.device(at::kCPU).requires_grad(false);
  const auto elements = c10::multiply_integers(sizes);
  const std::size_t bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  at::Tensor tensor;
  if (borrowed.may_stay) {
    tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_over(borrowed, bytes)),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      options.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  } else {
    tensor = at::empty(sizes, cpu);
    std::memcpy(tensor.mutable_data_ptr(), borrowed.data, bytes);
  }
  if (!options.device().is_cpu()) tensor = tensor.to(options.device());
  return options.requires_grad() ? tensor.requires_grad_() : tensor;
}

void keep_until_over(std::vector<Loan> loans) {
  auto& left = LeftOver::of_process();
  std::vector<Loan> over;  // whose memory goes after the lock
  std::lock_guard lock(left.mutex);
  std::move(loans.begin(), loans.end(), std::back_inserter(left.loans));
  const auto first = std::partition(left.loans.begin(), left.loans.end(),
                                    [](Loan& loan) { return !loan.is_over(); });
  std::move(first, left.loans.end(), std::back_inserter(over));
  left.loans.erase(first, left.loans.end());
}

}  // namespace lockstep::shm
