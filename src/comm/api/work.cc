#include <lockstep/comm/work.h>

#include "comm/api/group_state.h"

namespace lockstep {

void Work::wait() {
  if (group_) group_->wait(id_, entry_);
}

bool Work::done() const { return !group_ || group_->done(id_); }

}  // namespace lockstep
