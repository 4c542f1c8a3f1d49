// Autocast: LibTorch's mixed precision for the operations of a scope, as torch.autocast.
#pragma once

#include <ATen/autocast_mode.h>

#include <optional>

namespace lockstep::train {

// During the lifetime of the object, operations of this thread on this type of device compute in
// `dtype` where LibTorch's lists say so, and in float32 elsewhere; parameters keep their dtype.
// Without a dtype, changes nothing.
class [[nodiscard]] Autocast {
 public:
  Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype)
      : device_(device),
        is_on_(dtype.has_value()),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    if (!is_on_) return;
    at::autocast::set_autocast_dtype(device, *dtype);
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!is_on_) return;
    // LibTorch keeps the casts of parameters until the outermost scope ends.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool is_on_;
  bool was_enabled_;
  c10::ScalarType dtype_before_;
};

}  // namespace lockstep::train
