#include <lockstep/module/module_ref.h>

#include "base/check.h"

namespace lockstep {

std::shared_ptr<torch::nn::Module> ModuleRef::shared(std::string_view caller) const {
  check(module_ != nullptr, "{}: expected a module, found a null pointer or an empty holder",
        caller);
  return module_;
}

}  // namespace lockstep
